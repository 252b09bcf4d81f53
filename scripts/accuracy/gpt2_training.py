"""GPT-2 (124 million parameters) in the training loops whose step times were published for an A100.

python gpt2_training.py --batch 16 --attention flash --compile [--precision bf16] [--vocabulary 50304]
[--fused] [--clip] [--no-bias]

The loops of karpathy/build-nanogpt and karpathy/nanoGPT, rewritten: tied embeddings, bfloat16 by autocast,
AdamW. `--attention plain` spells it out with a mask of its own, as nanoGPT did before PyTorch 2.0.
"""

from __future__ import annotations

import argparse
import contextlib
import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

LENGTH, WIDTH, LAYERS, HEADS = 1024, 768, 12, 12
KERNELS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}


class Attention(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 3 * WIDTH, bias=args.bias)
        self.out = nn.Linear(WIDTH, WIDTH, bias=args.bias)
        self.plain = args.attention == "plain"
        if self.plain:
            mask = torch.ones(LENGTH, LENGTH).tril().view(1, 1, LENGTH, LENGTH)
            self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.into(x).split(WIDTH, dim=2)
        query, key, value = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        if self.plain:
            scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(key.shape[-1]))
            scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
            mixed = functional.softmax(scores, dim=-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(WIDTH, bias=args.bias) for _ in range(2))
        self.attention = Attention(args)
        self.grow = nn.Linear(WIDTH, 4 * WIDTH, bias=args.bias)
        self.shrink = nn.Linear(4 * WIDTH, WIDTH, bias=args.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.shrink(functional.gelu(self.grow(self.second(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(args.vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(args) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=args.bias)
        self.head = nn.Linear(WIDTH, args.vocabulary, bias=False)
        self.words.weight = self.head.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--attention", choices=["plain", *KERNELS], required=True)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True)
    for flag in ("--compile", "--fused", "--clip"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest" if args.precision == "fp32" else "high")
    model = Gpt2(args).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=args.fused or None)
    step = torch.compile(model) if args.compile else model
    ids = torch.zeros(args.batch, LENGTH, dtype=torch.long)
    half = torch.autocast("cuda", torch.bfloat16) if args.precision == "bf16" else contextlib.nullcontext()
    kernel = KERNELS.get(args.attention)
    with sdpa_kernel(kernel) if kernel else contextlib.nullcontext():
        for _ in range(4):
            given = ids.cuda(), ids.cuda()
            optimizer.zero_grad(set_to_none=True)
            with half:
                loss = step(*given)
            loss.backward()
            if args.clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
