"""The language model of a published course assignment, rebuilt from its description, and measured as its
author did.

A pre-norm transformer whose every operation is a separate tensor operation (no fused attention, no fused
loss), with an AdamW that is written out tensor by tensor. What is measured is one step after a few others,
as PyTorch counts it.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext

import torch
from measured import record, recorded_peak, report
from torch import nn


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.trunc_normal_(self.weight, std=math.sqrt(2 / (inputs + outputs)))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, tokens):
        return self.weight[tokens, :]


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        given = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(given)


class Rotary(nn.Module):
    def __init__(self, length: int, width: int):
        super().__init__()
        frequencies = 10000.0 ** -(torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(length).float(), frequencies)
        self.register_buffer("turns", torch.stack((torch.cos(angles), torch.sin(angles))), persistent=False)

    def forward(self, x):
        pairs = x.unflatten(-1, (x.shape[-1] // 2, 2))
        x1, x2 = pairs[..., 0], pairs[..., 1]
        cos, sin = self.turns[:, : x.shape[-2], :].unbind(0)
        first = cos * x1 - sin * x2
        second = sin * x1 + cos * x2
        return torch.concat((first, second), dim=-1)


def softmax(x):
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def cross_entropy(logits, targets):
    shifted = logits - torch.max(logits, dim=-1, keepdim=True)[0]
    log_softmax = shifted - torch.log(torch.sum(torch.exp(shifted), dim=-1, keepdim=True))
    del shifted
    negative = -log_softmax
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


def attend(q, k, v, mask):
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, v)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rotary: Rotary):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))
        self.output = Linear(width, width)
        self.rotary = rotary

    def forward(self, x):
        length = x.shape[-2]
        q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in (q, k, v))
        q = self.rotary(q)
        k = self.rotary(k)
        positions = torch.arange(length, device=x.device)
        mask = positions[:, None] >= positions[None, :]
        attended = attend(q, k, v, mask[None])
        attended = attended.transpose(-3, -2).flatten(-2).contiguous()
        return self.output(attended)


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.into, self.back, self.gate = Linear(width, hidden), Linear(hidden, width), Linear(width, hidden)

    def forward(self, x):
        return self.back(silu(self.into(x)) * self.gate(x))


def silu(x):
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, rotary: Rotary):
        super().__init__()
        self.attention = Attention(width, heads, rotary)
        self.mlp = Gated(width, hidden)
        self.norm1, self.norm2 = RootMeanSquareNorm(width), RootMeanSquareNorm(width)

    def forward(self, x):
        attended = self.attention(self.norm1(x))
        between = x + attended
        fed = self.mlp(self.norm2(between))
        return between + fed


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int, hidden: int):
        super().__init__()
        self.tokens = Embedding(vocabulary, width)
        rotary = Rotary(length, width // heads)
        self.layers = nn.ModuleList(Block(width, heads, hidden, rotary) for _ in range(layers))
        self.norm = RootMeanSquareNorm(width)
        self.head = Linear(width, vocabulary)

    def forward(self, tokens):
        embedded = self.tokens(tokens)  # named, as in the original: so it lives as long as the pass
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)


class WrittenOutAdamW(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})

    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                count = state.get("count", 1)
                rate = group["lr"] * math.sqrt(1 - beta2**count) / (1 - beta1**count)
                p.data -= group["lr"] * group["weight_decay"] * p.data
                # The default is made even where the state is there, as in the original: it counts.
                before1 = state.get("first", torch.zeros_like(grad))
                before2 = state.get("second", torch.zeros_like(grad))
                first = beta1 * before1 + ((1 - beta1) * grad)
                second = beta2 * before2 + ((1 - beta2) * torch.square(grad))
                p.data -= rate * first / (torch.sqrt(second) + group["eps"])
                state["first"], state["second"], state["count"] = first, second, count + 1


SIZES = {
    "medium": {"width": 1024, "hidden": 4096, "layers": 24, "heads": 16},
    "xl": {"width": 2560, "hidden": 10240, "layers": 32, "heads": 32},
    "tiny": {"width": 64, "hidden": 128, "layers": 2, "heads": 4},
}


def build(size: str, vocabulary: int, length: int, device: str) -> LanguageModel:
    """The model on the card. Its values do not matter, so the host makes none; the order of moving is
    kept.
    """
    shape = SIZES[size]
    with torch.device("meta"):
        model = LanguageModel(
            vocabulary, length, shape["width"], shape["layers"], shape["heads"], shape["hidden"]
        )
    return model.to_empty(device=device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="medium")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    device = "cuda"
    model = build(args.size, args.vocabulary, args.length, device)
    optimizer = WrittenOutAdamW(model.parameters())

    def tokens(steps):
        return torch.randint(0, args.vocabulary, (steps, args.batch_size, args.length), device=device)

    precision = torch.autocast("cuda", torch.bfloat16) if args.autocast else nullcontext()
    warm_inputs, inputs = tokens(args.warmup), tokens(1)

    if args.inference:
        model.eval()
        with torch.inference_mode():
            for index in range(args.warmup):
                with precision:
                    model(warm_inputs[index])
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            record()
            with precision:
                model(inputs[0])
                torch.cuda.synchronize()
    else:
        warm_targets, targets = tokens(args.warmup), tokens(1)
        model.train()
        for index in range(args.warmup):
            with precision:
                output = model(warm_inputs[index])
                loss = cross_entropy(output, warm_targets[index])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        del output, loss
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        record()
        with precision:
            output = model(inputs[0])
            loss = cross_entropy(output, targets[0])
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
    report(
        allocated_before=before,
        allocated=recorded_peak(),
        allocated_by_statistics=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
    )


if __name__ == "__main__":
    main()
