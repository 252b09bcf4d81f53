"""The autograd graph: its number of nodes, its last operations, and its leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_count_nodes: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)


def node_number() -> int | None:
    """Return the number of autograd nodes this thread has made so far; `None` if PyTorch does not
    expose it.
    """
    return _count_nodes() if _count_nodes is not None else None


# Length of the path from a loss that is compared, and attributes that decide how its samples are averaged.
_TAIL_LENGTH = 4
_settings_of: dict[type, list[str]] = {}
_SETTINGS = ("_saved_reduction", "_saved_ignore_index")


def tail(returned: Any) -> tuple[Any, ...]:
    """Return the last operations that computed a loss: its mean or sum, and how it ignores labels."""
    values = returned.values() if isinstance(returned, dict) else (returned,)
    found: list[Any] = []
    for value in values:
        loss = value[0] if isinstance(value, (tuple, list)) and value else value
        node = getattr(loss, "grad_fn", None)
        for _ in range(_TAIL_LENGTH):
            if node is None:
                break
            kind = type(node)
            if kind not in _settings_of:
                _settings_of[kind] = [name for name in _SETTINGS if hasattr(node, name)]
            found.append(kind)
            found += [getattr(node, name) for name in _settings_of[kind]]
            following = node.next_functions
            node = following[0][0] if following else None
    return tuple(found)


# Operations with a kink, by their node in the graph. Beside it their gradient does not depend on where the
# argument is, so that comparing a few samples does not show it.
_KINKS = {
    "Abs": "abs",
    "Relu": "relu",
    "LeakyRelu": "leaky_relu",
    "Hardtanh": "hardtanh",
    "Threshold": "threshold",
    "Clamp": "clamp",
    "ClampMin": "clamp",
    "ClampMax": "clamp",
    "Maximum": "maximum",
    "Minimum": "minimum",
}
_ARGUMENTS = ("_saved_self", "_saved_result")


class Kink(NamedTuple):
    """An operation with a kink on a single number, and that number."""

    name: str
    value: float


def kinks(returned: Any) -> list[Kink]:
    """Return operations with a kink on single numbers that a loss was computed from."""
    values = returned.values() if isinstance(returned, dict) else (returned,)
    losses = [value[0] if isinstance(value, (tuple, list)) and value else value for value in values]
    found: list[Kink] = []
    seen: set[Any] = set()
    waiting = [getattr(loss, "grad_fn", None) for loss in losses]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or not _is_number(node):
            continue
        seen.add(node)
        name = _KINKS.get(node.name().partition("Backward")[0])
        argument = next((getattr(node, key) for key in _ARGUMENTS if hasattr(node, key)), None)
        if name is not None and argument is not None:
            found.append(Kink(name, float(argument.detach())))
        waiting += [following for following, _ in node.next_functions]
    return found


def _is_number(node: Any) -> bool:
    """Return `True` if an operation computed a single number."""
    shapes = [entry.shape for entry in getattr(node, "_input_metadata", ())]
    return bool(shapes) and all(len(shape) == 0 for shape in shapes)


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
