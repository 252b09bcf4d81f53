"""The rules whose claims are executed by tests, the texts of their pages, and the model that most of them
use.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from runs import MIB, memfit
from torch import nn

PROOFS: dict[str, list[Callable[..., Any]]] = {}


def proof(name):
    """Says which rule's claims a test carries out."""

    def known(function):
        PROOFS.setdefault(name, []).append(function)
        return function

    return known


@functools.cache
def why(name: str) -> str:
    """Return the reason for a rule from its page, in one line."""
    page = subprocess.run([memfit(), "rule", name], capture_output=True, text=True, check=True).stdout
    return " ".join(page.split("\nWhy\n")[1].split("\nExample\n")[0].split())


def says(name: str, *figures: str) -> None:
    """The page of a rule gives these figures, which were measured just now."""
    for figure in figures:
        assert figure in why(name), f"the page of {name} does not say `{figure}`: {why(name)}"


def size(number: float) -> str:
    """Bytes, as pages tell them."""
    for unit, each in (("MiB", MIB), ("KiB", 1024)):
        if number >= each:
            return f"{number / each:.0f} {unit}"
    return f"{number} bytes"


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def data(count=4):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, generator=generator), torch.arange(8) % 3) for _ in range(count)]


def gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
