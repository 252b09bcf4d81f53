"""Generation with a Llama, one token after the other, as pytorch-labs/gpt-fast and torchao do: compiled into
a CUDA graph, with a cache of fixed size.

python llama_decoding.py 7b|8b bf16|int8
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, LENGTH, TOKENS = 4096, 32, 32, 208, 8
SIZES = {"7b": (32, 11008, 32000), "8b": (8, 14336, 128256)}


class Int8(nn.Module):
    """A product with weights of eight bits, which are scaled by row."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(outputs, inputs, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype)) * self.scales.to(x.dtype)


def linear(inputs: int, outputs: int, precision: str) -> nn.Module:
    return Int8(inputs, outputs) if precision == "int8" else nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self, groups: int, hidden: int, precision: str) -> None:
        super().__init__()
        self.groups, self.head = groups, WIDTH // HEADS
        self.into = linear(WIDTH, WIDTH + 2 * groups * self.head, precision)
        self.out = linear(WIDTH, WIDTH, precision)
        self.gate, self.up = (linear(WIDTH, hidden, precision) for _ in range(2))
        self.down = linear(hidden, WIDTH, precision)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, groups, LENGTH, self.head, dtype=torch.bfloat16))

    def forward(
        self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor, turn: torch.Tensor
    ) -> torch.Tensor:
        sizes = [WIDTH, self.groups * self.head, self.groups * self.head]
        parts = self.into(self.norms[0](x)).split(sizes, dim=-1)
        query, key, value = (part.view(1, 1, -1, self.head) for part in parts)
        query, key, value = (
            part.transpose(1, 2) for part in (rotated(query, turn), rotated(key, turn), value)
        )
        self.keys[:, :, place] = key
        self.values[:, :, place] = value
        again = HEADS // self.groups
        keys, values = (each.repeat_interleave(again, dim=1) for each in (self.keys, self.values))
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        inner = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    pairs = x.float().unflatten(-1, (-1, 2))
    real, other = turn.unbind(-1)
    first = pairs[..., 0] * real - pairs[..., 1] * other
    second = pairs[..., 1] * real + pairs[..., 0] * other
    return torch.stack((first, second), dim=-1).flatten(-2).type_as(x)


class Llama(nn.Module):
    def __init__(self, size: str, precision: str) -> None:
        super().__init__()
        groups, hidden, words = SIZES[size]
        self.words = nn.Embedding(words, WIDTH)
        self.blocks = nn.ModuleList(Block(groups, hidden, precision) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), linear(WIDTH, words, precision)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
        self.register_buffer("turns", torch.zeros(LENGTH, WIDTH // HEADS // 2, 2))

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.words(token)
        for block in self.blocks:
            x = block(x, place, self.mask[None, None, place], self.turns[place][None, :, None])
        logits = self.head(self.norm(x))[0, -1]
        best, _ = torch.topk(logits / 0.8, 200)
        odds = functional.softmax(torch.where(logits < best[-1], -float("inf"), logits), dim=-1)
        noise = torch.empty_like(odds).exponential_(1)
        return torch.argmax(odds / noise, dim=-1, keepdim=True).view(1, 1)


def main() -> None:
    size, precision = sys.argv[1:]
    with torch.device("cuda"):
        model = Llama(size, precision).to(torch.bfloat16).eval()
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    place = torch.tensor([5], device="cuda")
    with torch.inference_mode(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for _ in range(TOKENS):
            token = step(token, place).clone()
            place += 1


if __name__ == "__main__":
    main()
