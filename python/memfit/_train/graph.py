"""The autograd graph: its number of nodes, its last operations, and its leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

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


# A term of a loss with a smaller weight is invisible in a comparison.
_NEGLIGIBLE_WEIGHT = 1e-6
# Number of operations on single numbers, from a loss backwards, whose weights are compared.
_MAX_TERMS = 40
_WEIGHTS = ("_saved_other", "_saved_self", "_saved_alpha")


def tail(returned: Any) -> tuple[Any, ...]:
    """Return the last operations that computed a loss: its mean or sum, how it ignores labels, and which of
    its terms count nothing.
    """
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
    return (*found, *(_is_negligible(node) for node in islice(_of_numbers(returned), _MAX_TERMS)))


def _is_negligible(node: Any) -> bool:
    """Return `True` if an operation multiplies a term of a loss by zero. A number on a GPU is not read, since
    that would wait for the GPU.
    """
    if not node.name().startswith(("MulBackward", "AddBackward", "SubBackward")):
        return False
    for name in _WEIGHTS:
        weight = getattr(node, name, None)
        if isinstance(weight, torch.Tensor):
            if weight.device.type != "cpu" or weight.requires_grad or weight.dim():
                continue
            with _disable_current_modes():
                weight = weight.item()
        if isinstance(weight, (int, float)) and abs(weight) < _NEGLIGIBLE_WEIGHT:
            return True
    return False


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
    found: list[Kink] = []
    for node in _of_numbers(returned):
        name = _KINKS.get(node.name().partition("Backward")[0])
        argument = next((getattr(node, key) for key in _ARGUMENTS if hasattr(node, key)), None)
        if name is not None and argument is not None:
            found.append(Kink(name, float(argument.detach())))
    return found


def _of_numbers(returned: Any) -> Iterator[Any]:
    """Yield the operations on single numbers that a loss was computed with, the last ones first."""
    values = returned.values() if isinstance(returned, dict) else (returned,)
    losses = [value[0] if isinstance(value, (tuple, list)) and value else value for value in values]
    seen: set[Any] = set()
    waiting = deque(getattr(loss, "grad_fn", None) for loss in losses)
    while waiting:
        node = waiting.popleft()
        if node is not None and node not in seen and _is_number(node):
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


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
