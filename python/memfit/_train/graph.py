"""The autograd graph: its number of nodes, and its leaves."""

from __future__ import annotations

from typing import Any

import torch


def node_number() -> int | None:
    """Return the number of autograd nodes this thread has made so far; `None` if PyTorch does not
    expose it.
    """
    counted = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return int(counted()) if counted is not None else None


def leaves(value: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that receive gradients from a backward pass."""
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
