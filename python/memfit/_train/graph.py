"""The graph that autograd records: how long it is, and where it ends."""

from __future__ import annotations

from typing import Any

import torch


def node_number() -> int | None:
    """How many autograd nodes this thread has made so far; None where this PyTorch does not tell."""
    counted = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return int(counted()) if counted is not None else None


def leaves(value: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a backward from a value gives gradients to."""
    found: list[torch.Tensor] = []
    seen: set[Any] = set()
    waiting = [value.grad_fn] if value.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found
