"""A small language model of another author, measured from the process's start, the model's making included.

It differs from `course_lm.py` in its details, and they decide the peak: the norm divides by a root, the
softmax computes its exponentials twice, the mask comes from the host for each layer, and the loss is taken
from a one-hot tensor of the last position only.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext

import torch
from measured import record, recorded_peak, report
from torch import nn

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, HIDDEN = 10000, 256, 512, 4, 16, 1344


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device="cuda"))
        std = math.sqrt(2 / (inputs + outputs))
        nn.init.trunc_normal_(self.weight, std=std, a=-3 * std, b=3 * std)

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCABULARY, WIDTH, device="cuda"))
        nn.init.trunc_normal_(self.weight, std=1, a=-3, b=3)

    def forward(self, tokens):
        return self.weight[tokens]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, device="cuda"))

    def forward(self, x):
        given = x.dtype
        x = x.to(torch.float32)
        root = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5)
        result = x / root * self.weight
        return result.to(given)


class Rotary(nn.Module):
    """Its tables stay on the host; each use sends the rows that it needs."""

    def __init__(self, width: int):
        super().__init__()
        rates = torch.tensor([10000 ** (-2 * k / width) for k in range(width // 2)])
        angles = torch.outer(torch.arange(LENGTH).float(), rates)
        self.register_buffer("sin", torch.sin(angles), persistent=False)
        self.register_buffer("cos", torch.cos(angles), persistent=False)

    def forward(self, x):
        positions = torch.arange(x.shape[-2])
        sin = self.sin[positions].to("cuda")[None, :, :, None]
        cos = self.cos[positions].to("cuda")[None, :, :, None]
        x = x.unflatten(-1, (x.shape[-1] // 2, 2))
        first = cos * x[..., :1] - sin * x[..., 1:]
        second = sin * x[..., :1] + cos * x[..., 1:]
        turned = torch.cat([first, second], dim=-1)
        return turned.flatten(-2)


class Softmax(nn.Module):
    def forward(self, x, dim):
        largest, _ = torch.max(x, dim=dim, keepdim=True)
        return torch.exp(x - largest) / torch.sum(torch.exp(x - largest), dim=dim, keepdim=True)


class Scores(nn.Module):
    def forward(self, q, k, v, mask):
        mask = mask.to(q.device)
        products = torch.einsum("...qd,...kd->...qk", q, k)
        scores = products / torch.sqrt(torch.tensor(q.shape[-1], device=products.device))
        masked = scores.masked_fill_(~mask.bool(), -float("inf"))
        weights = Softmax()(masked, dim=-1)
        result = torch.einsum("...qk,...kd->...qd", weights, v)
        return result


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary(WIDTH // HEADS)
        self.query, self.key, self.value = (Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = Linear(WIDTH, WIDTH)
        self.scores = Scores()

    def forward(self, x):
        length = x.shape[-2]
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        q = q.unflatten(-1, (HEADS, -1)).transpose(-3, -2)
        k = k.unflatten(-1, (HEADS, -1)).transpose(-3, -2)
        v = v.unflatten(-1, (HEADS, -1)).transpose(-3, -2)
        q = self.rotary(q)
        k = self.rotary(k)
        mask = torch.tril(torch.ones(length, length))
        o = self.scores(q, k, v, mask)
        o = o.transpose(-3, -2).flatten(-2)
        o = self.output(o)
        return o


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.back, self.gate = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)

    def forward(self, x):
        a = self.into(x)
        b = a * torch.sigmoid(a)
        c = self.gate(x)
        bc = b * c
        return self.back(bc)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.attention = Attention()
        self.mlp = Gated()

    def forward(self, x):
        normed = self.norm1(x)
        attended = self.attention(normed)
        between = attended + x
        normed2 = self.norm2(between)
        fed = self.mlp(normed2)
        after = fed + between
        return after


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = Embedding()
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = Norm()
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        output = self.head(x)
        return output


def loss_of(x, target):
    rows = x.shape[0]
    largest, _ = torch.max(x, dim=-1, keepdim=True)
    log_softmax = x - largest - torch.log(torch.sum(torch.exp(x - largest), dim=-1, keepdim=True))
    one_hot = torch.zeros_like(log_softmax)
    one_hot.scatter_(-1, target.unsqueeze(-1), 1)
    return -torch.sum(one_hot * log_softmax) / rows


class WrittenOutAdam(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "first": torch.zeros_like(p.data),
                    "second": torch.zeros_like(p.data),
                    "count": 0,
                }

    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                count = self.state[p]["count"] + 1
                rate = group["lr"] * math.sqrt(1 - beta2**count) / (1 - beta1**count)
                if p.grad is None:
                    continue
                grad = p.grad.data
                # The names outlive the turn of the loop, as in the original, and with them what they hold.
                first_before = self.state[p]["first"]
                first = beta1 * first_before + (1 - beta1) * grad
                self.state[p]["first"] = first
                second_before = self.state[p]["second"]
                second = beta2 * second_before + (1 - beta2) * grad**2
                self.state[p]["second"] = second
                self.state[p]["count"] = count
                p.data = p.data - rate * (first / (torch.sqrt(second) + group["eps"]))
                p.data = p.data - group["lr"] * group["weight_decay"] * p.data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    precision = torch.autocast("cuda", torch.bfloat16) if args.autocast else nullcontext()
    record()
    model = Model()
    if args.forward:
        tokens = torch.randint(0, VOCABULARY, (10, args.length)).to("cuda")
        for _ in range(3):
            with precision:
                model(tokens)
    else:
        optimizer = WrittenOutAdam(model.parameters())
        tokens = torch.randint(0, VOCABULARY, (10, args.length)).to("cuda")
        labels = torch.randint(0, VOCABULARY, (10,)).to("cuda")
        with precision:
            for _ in range(3):
                optimizer.zero_grad()
                logits = model(tokens)
                predicted = logits[:, -1, :]
                loss = loss_of(predicted, labels)
                loss.backward()
                optimizer.step()
    report(allocated=recorded_peak(), reserved=torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
