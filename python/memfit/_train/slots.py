"""Variables in Python, saved and restored."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.Tensor, torch.Size)
CONTAINERS = (list, dict, set, deque)


class Slot:
    """A variable: an attribute, a variable of a closure, or a global variable."""

    __slots__ = ("assign", "get", "name")

    def __init__(self, name: str, get: Callable[[], Any], assign: Callable[[Any], None]) -> None:
        self.name, self.get, self.assign = name, get, assign


class Kept:
    """A saved value: the object itself, and a copy of its contents if it is a container."""

    __slots__ = ("inner", "slot", "value")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        value = slot.get()
        # A tensor with a graph belongs to a step that is over; keeping the graph would keep that step's
        # memory.
        self.value = (
            value.detach() if isinstance(value, torch.Tensor) and value.grad_fn is not None else value
        )
        self.inner = copy.copy(self.value) if isinstance(self.value, CONTAINERS) else None

    def changed(self) -> bool:
        """Return `True` if the value has changed."""
        now = self.slot.get()
        if now is not self.value:
            return (
                isinstance(now, torch.Tensor)
                or isinstance(self.value, torch.Tensor)
                or not _equal(now, self.value)
            )
        return self.inner is not None and not _same_entries(self.inner, now)

    def restore(self) -> None:
        """Restore the value."""
        if self.slot.get() is not self.value:
            self.slot.assign(self.value)
        if self.inner is None or _same_entries(self.inner, self.value):
            return
        self.value.clear()
        if isinstance(self.value, (dict, set)):
            self.value.update(self.inner)
        else:
            self.value.extend(self.inner)


def attributes_of(name: str, holder: Any) -> list[Slot]:
    """Return an object's own attributes that hold plain values or containers."""
    own = vars(holder)
    return [
        entry(own, key, f"{name}.{key}")
        for key, value in list(own.items())
        if isinstance(value, (*PLAIN, *CONTAINERS)) and key not in _MODULE_TABLES and key != "training"
    ]


def entry(space: dict[str, Any], key: str, name: str) -> Slot:
    """Return a dictionary's entry as a variable."""

    def assign(value: Any) -> None:
        space[key] = value

    return Slot(name, lambda: space.get(key), assign)


_MODULE_TABLES = frozenset(vars(nn.Module()))


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _same_entries(before: Any, now: Any) -> bool:
    if len(before) != len(now):
        return False
    if isinstance(before, dict):
        return all(
            key in now and (now[key] is value or _equal_plain(now[key], value))
            for key, value in before.items()
        )
    if isinstance(before, set):
        return bool(before == now)
    return all(one is other or _equal_plain(one, other) for one, other in zip(before, now, strict=True))


def _equal_plain(one: Any, other: Any) -> bool:
    return isinstance(one, (int, float, str, bool)) and _equal(one, other)
