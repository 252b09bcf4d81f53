"""Counters that a trainer updates during a step: losses to log, tokens, metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Attributes with more entries are data sets and the like, which no step changes.
_MAX_ENTRIES = 4096
_MAX_NUMBERS = 4096
# Lists in lists: deeper ones are no counters, and one that contains itself has no end.
_MAX_DEPTH = 32
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_CONTAINERS = (dict, list, deque, set, tuple)

# Attributes that every module has: parameters, buffers and hooks, which are not counters.
_OF_MODULES = frozenset(vars(nn.Module()))

_Restore = Callable[[], Any]


class Counters:
    """Saves an object's attributes that consist of plain values: numbers, text, small tensors, and
    containers of these.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        # Attributes that were too large.
        self._skipped: set[str] = set(_OF_MODULES if isinstance(owner, nn.Module) else ())

    def keep(self) -> Callable[[], None]:
        """Return a function that restores the current values; it may be called several times."""
        attributes = vars(self._owner)
        kept: dict[str, _Restore] = {}
        for name, value in list(attributes.items()):
            if name in self._skipped:
                continue
            budget = _Budget()
            restore = _keep(value, budget)
            if budget.spent > _MAX_ENTRIES:
                self._skipped.add(name)
            elif restore is not None:
                kept[name] = restore
        names = set(attributes)

        def restore_all() -> None:
            for name, restore in kept.items():
                attributes[name] = restore()
            for name in [each for each in attributes if each not in names]:
                if isinstance(attributes[name], (*_PLAIN, *_CONTAINERS, torch.Tensor)):
                    del attributes[name]

        return restore_all


class _Budget:
    def __init__(self) -> None:
        self.spent = 0


def _keep(value: Any, budget: _Budget, depth: int = 0) -> _Restore | None:
    """Return a function that restores and returns a value; `None` if it is not plain, or too large."""
    budget.spent += 1
    if isinstance(value, _PLAIN):
        return lambda: value
    if isinstance(value, torch.Tensor):
        return _keep_tensor(value)
    if not isinstance(value, _CONTAINERS) or depth > _MAX_DEPTH:
        return None
    entries = list(value.items()) if isinstance(value, dict) else [(None, each) for each in value]
    kept: list[tuple[Any, _Restore]] = []
    for key, each in entries:
        restore = _keep(each, budget, depth + 1) if budget.spent <= _MAX_ENTRIES else None
        if restore is None:
            return None
        kept.append((key, restore))
    if isinstance(value, tuple):
        for_tuple = [restore for _, restore in kept]

        def refill_tuple() -> Any:
            for restore in for_tuple:
                restore()
            return value

        return refill_tuple

    def refill() -> Any:
        if isinstance(value, dict):
            then = {key: restore() for key, restore in kept}
            value.clear()
            value.update(then)
            return value
        now = [restore() for _, restore in kept]
        value.clear()
        if isinstance(value, set):
            value.update(now)
        else:
            value.extend(now)
        return value

    return refill


def _keep_tensor(tensor: torch.Tensor) -> _Restore | None:
    if tensor.requires_grad or tensor.numel() > _MAX_NUMBERS or tensor.layout is not torch.strided:
        return None
    copy = tensor.detach().clone()

    def restore() -> torch.Tensor:
        with torch.no_grad():
            if not torch.equal(tensor, copy):
                tensor.copy_(copy)
        return tensor

    return restore
