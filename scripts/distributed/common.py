"""The common parts of the cases: entry point, a small transformer, a few training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 256
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Enters a case under its function's name."""
    CASES[function.__name__.replace("_", "-")] = function
    return function


def rank() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()


def card() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


class Block(nn.Module):
    """A residual block with an attention and an MLP."""

    def __init__(self, width: int = WIDTH, heads: int = 8):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (
            p(h).unflatten(-1, (-1, WIDTH // self.heads)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


def model(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(blocks)]).to(card())


def batch(size: int = 4, length: int = 32) -> torch.Tensor:
    return torch.randn(size, length, WIDTH, device=card())


def train(module: nn.Module, steps: int = 2, optimizer: Any = None, **shape: int) -> None:
    optimizer = optimizer or torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(steps):
        module(batch(**shape)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def agree(condition: Any, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def say(text: str) -> None:
    if rank() == 0:
        print(text, flush=True)
