"""Variables in Python, saved and restored."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

# Values that are saved as they are.
PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.Tensor, tuple)
# Values whose contents are saved.
CONTAINERS = (list, dict, set, deque)
# Larger NumPy arrays are data rather than state: their contents are not copied.
_MAX_COPIED_BYTES = 1 << 20
# Of larger containers, only the number of entries is compared.
_MAX_ENTRIES = 4096
_ABSENT = object()
# Number of entries by which a list is made longer at most.
_MAX_REPEATS = 256


class Advance(NamedTuple):
    """How far to count up: to the next multiple, or a little further; and a factor for averages."""

    multiple: int
    offset: int
    scale: float


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
        has_graph = any(each.grad_fn is not None for each in _tensors_in(value))
        self.value = tree_map_only(torch.Tensor, torch.Tensor.detach, value) if has_graph else value
        self.inner: Any = copy.copy(self.value) if _has_contents(self.value) else None

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
        if is_array(self.value):
            self.value[...] = self.inner
            return
        self.value.clear()
        if isinstance(self.value, (dict, set)):
            self.value.update(self.inner)
        else:
            self.value.extend(self.inner)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of the tensors and the array that the variable holds, by name; of those in a list or
        a dictionary the ones that changed.
        """
        name, value = self.slot.name, self.slot.get()
        if isinstance(value, torch.Tensor):
            return {name: value.detach().clone()}
        if is_array(value) and value.dtype.kind in "biufc":
            return {name: torch.as_tensor(value.copy())}
        entries = self._changed_entries() if self._has_entries(value) else enumerate(_tensors_in(value))
        return {
            f"{name}[{key!r}]": each.detach().clone()
            for key, each in entries
            if isinstance(each, torch.Tensor)
        }

    def numbers(self) -> dict[str, Any]:
        """Return the plain values that the variable holds, by name: of a list or a dictionary those that
        changed, or the length of a list if that changed. Of another object, return the name of its type.
        """
        name, value = self.slot.name, self.slot.get()
        if isinstance(value, torch.Tensor) or is_array(value):
            return {}
        if self._has_entries(value):
            plain = {key: each for key, each in self._changed_entries() if _is_plain(each)}
            if not isinstance(value, dict):
                return {name: tuple(plain.values())}
            entries = {f"{name}[{key!r}]": each for key, each in plain.items()}
            return entries if len(value) == len(self.inner) else {name: len(value), **entries}
        if isinstance(value, (*CONTAINERS, tuple)):
            return {name: len(value)}
        return {name: value if isinstance(value, PLAIN) else type(value).__name__}

    def advance(self, names: frozenset[str], to: Advance) -> None:
        """Count up the named numbers, scale the named averages, and repeat the last entry of a named list
        that grew, scaled.
        """
        name, value = self.slot.name, self.slot.get()
        if name in names and _is_number(value):
            self.slot.assign(_advanced(value, to))
        elif isinstance(value, dict):
            for key, each in value.items():
                if f"{name}[{key!r}]" in names and _is_number(each):
                    value[key] = _advanced(each, to)
        elif name in names and isinstance(value, (list, deque)) and value:
            if self.inner is not None and len(value) == len(self.inner):
                for place, each in enumerate(value):
                    value[place] = _advanced(each, to) if _is_number(each) else each
            else:
                last = value[-1] * to.scale if isinstance(value[-1], float) else value[-1]
                value.extend([last] * min(to.multiple, _MAX_REPEATS))

    def _has_entries(self, value: Any) -> bool:
        """Return `True` for a container whose entries can be compared with those before. Of a list that was
        appended to, only the length is.
        """
        if type(value) is not type(self.inner) or isinstance(value, set):
            return False
        if not isinstance(value, CONTAINERS) or len(value) > _MAX_ENTRIES:
            return False
        return isinstance(value, dict) or len(value) == len(self.inner)

    def _changed_entries(self) -> list[tuple[Any, Any]]:
        value, inner = self.slot.get(), self.inner
        if isinstance(value, dict):
            pairs = [(key, each, inner.get(key, _ABSENT)) for key, each in value.items()]
        else:
            pairs = [(key, each, before) for key, (each, before) in enumerate(zip(value, inner, strict=True))]
        return [
            (key, each) for key, each, before in pairs if not (each is before or _equal_plain(each, before))
        ]


def is_saved(value: Any) -> bool:
    """Return `True` for values that can be saved and restored."""
    return isinstance(value, (*PLAIN, *CONTAINERS)) or is_array(value)


def is_array(value: Any) -> bool:
    """Return `True` for an array or a number of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _has_contents(value: Any) -> bool:
    """Return `True` if a value can change in place and is small enough to copy."""
    if is_array(value):
        return value.flags.writeable and value.nbytes <= _MAX_COPIED_BYTES
    return isinstance(value, CONTAINERS)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Return a tensor, or those in a tuple."""
    if isinstance(value, tuple):
        return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    return [value] if isinstance(value, torch.Tensor) else []


def attributes_of(name: str, holder: Any) -> list[Slot]:
    """Return an object's own attributes that hold plain values or containers."""
    own = vars(holder)
    return [
        entry(own, key, f"{name}.{key}")
        for key, value in list(own.items())
        if is_saved(value) and key not in MODULE_TABLES and key != "training"
    ]


def entry(space: dict[str, Any], key: str, name: str) -> Slot:
    """Return a dictionary's entry as a variable."""

    def assign(value: Any) -> None:
        space[key] = value

    return Slot(name, lambda: space.get(key), assign)


def attribute(holder: Any, key: str, name: str) -> Slot:
    """Return an attribute that is in no dictionary of its object: of a class, or in `__slots__`."""
    return Slot(name, partial(getattr, holder, key, None), partial(setattr, holder, key))


MODULE_TABLES = frozenset(vars(nn.Module()))


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    try:
        (leaves, structure), (others, other_structure) = tree_flatten(one), tree_flatten(other)
        # No tensor is compared, nor an object that may hold one: the host would have to wait for the GPU.
        return structure == other_structure and all(
            left is right or (type(left) is type(right) and _is_on_host(left) and bool(left == right))
            for left, right in zip(leaves, others, strict=True)
        )
    except Exception:
        return False


def _is_on_host(leaf: Any) -> bool:
    return is_array(leaf) or type(leaf) in (int, float, complex, bool, str, bytes)


def _same_entries(before: Any, now: Any) -> bool:
    if is_array(before):
        return before.tobytes() == now.tobytes() if before.dtype != object else bool((before == now).all())
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _advanced(value: float, to: Advance) -> float:
    if isinstance(value, float) and to.scale != 1.0:
        return value * to.scale
    return value - value % to.multiple + to.multiple + to.offset


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, complex, str, type(None)))


def _equal_plain(one: Any, other: Any) -> bool:
    return isinstance(one, (int, float, str, bool)) and _equal(one, other)
