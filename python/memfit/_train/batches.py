"""Batches and their micro-batches.

A batch is whatever a loader yields: tensors, and containers of them. Entries that have the batch dimension
are split along it; everything else is passed unchanged to every micro-batch.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import Counter, UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map_only

from .columns import Column, columns
from .rules import Cut, Layout, Rules

Items = Callable[[Any], int]

_REGISTERED: dict[type, tuple[Items, Cut]] = {}


def register_batch_type(kind: type, items: Items, cut: Cut) -> None:
    """Let `memfit.Step` split batches of a type of your own.

    `items(value)` is the number of samples, `cut(value, start, stop)` the value with the samples from start
    to stop.
    """
    _REGISTERED[kind] = (items, cut)


def _registered(value: Any) -> tuple[Items, Cut] | None:
    for kind in type(value).__mro__:
        if kind in _REGISTERED:
            return _REGISTERED[kind]
    return None


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_fields(value: Any) -> bool:
    """Return `True` if a list or tuple holds a batch's fields rather than its samples."""
    if is_namedtuple(value):
        return True
    if type(value) is list and len(value) > 1:
        # `collate_fn=lambda samples: samples` yields pairs, or sequences of different lengths.
        if all(type(entry) is tuple and len(entry) == len(value[0]) for entry in value):
            return False
        tensors = all(isinstance(entry, torch.Tensor) and entry.dim() > 0 for entry in value)
        alike = tensors and len({(entry.dim(), entry.dtype) for entry in value}) == 1
        if alike and len({entry.size(0) for entry in value}) > 1:
            return False
    return not (value and all(isinstance(entry, (Mapping, str, bytes, int, float)) for entry in value))


class Batch:
    """A batch, and the rules for splitting it."""

    def __init__(self, value: Any, rules: Rules | None = None, size: int | None = None) -> None:
        self.value = value
        self._rules = rules if rules is not None else Rules()
        if size is None and self._rules.count is not None:
            size = self._rules.count(value)
        dimension, split = self._rules.dimension, self._rules.split
        # Set if the batch contains a type registered with `register_batch_type`.
        self._foreign = False
        # The count of each of several losses over the whole batch, if known before it runs.
        self.counts: dict[str, float] | None = None
        # The differences that dividing this batch causes, once they were measured.
        self.divided: tuple[str, ...] | None = None
        # Set for a sample of weight zero, on a rank without samples.
        self.void = False
        self._flat = _flat(value) if split is None else None
        # Tensors that have the length of this batch by chance.
        self._shared: frozenset[int] = frozenset()
        key = None
        if self._flat is not None:
            self._shared = self._rules.layouts.shared(type(value), self._flat)
            key = (
                type(value),
                size,
                dimension,
                len(_REGISTERED),
                *[(entry.shape, entry.dtype) for entry in self._flat],
            )
            layout = self._rules.layouts.find(key)
            if layout is not None:
                self._layout = layout
                self.items, self.shape, self.elements = layout.items, layout.shape, layout.elements
                self.costs: list[int] | None = None
                return
        sizes: Counter[int] = Counter()
        lists: list[Any] = []
        self._survey(value, sizes, lists, top=True)
        self.items = size if size is not None else self._guess(sizes, lists)
        if (
            size is not None
            and split is None
            and size not in sizes
            and all(len(each) != size for each in lists)
        ):
            raise ValueError(
                f"`batch_size=` returned {size} samples, but nothing in this batch has that length\n"
                "hint: name the batch dimension with `batch_dim=`, or split the batch yourself with "
                "`split=fn(batch, start, stop)`"
            )
        # One entry for each field: its shape without the batch dimension, and its kind.
        self._shapes: list[str] = []
        self._kinds: list[str] = []
        self._elements = 0
        self._costs: list[int] | None = None
        self._describe(value, top=True)
        # The shape of one sample, without the number of samples.
        self.shape = " ".join(self._shapes)
        self._structure = " ".join(self._kinds)
        # Elements in the largest sample; and in each sample, if they differ.
        costs: list[int] = self._costs or []
        self.elements = max(self._elements + max(costs, default=0), 1)
        self.costs = [self._elements + cost for cost in costs] if len(set(costs)) > 1 else None
        if key is not None and self._flat is not None:
            cut = tuple(self._is_cut(entry) for entry in self._flat)
            self._layout = Layout(self.items, self.shape, self._structure, self.elements, cut)
            self._rules.layouts.add(key, type(value), self._flat, self._layout)

    def same_rules(self, value: Any, size: int) -> Batch:
        """Wrap some samples of this batch with the rules for dividing it."""
        return Batch(value, self._rules, size)

    def part(self, start: int, stop: int, device: torch.device | None, own: bool = False) -> Any:
        """Return the samples from start to stop on a device; with `own`, copied so that they share no memory
        with the batch.
        """
        return self._take(range(start, stop), device, own)

    def picked(self, samples: Sequence[int], device: torch.device | None) -> Any:
        """Return copies of the given samples. They must be contiguous unless `picks` is true."""
        return self._take(samples, device, True)

    @property
    def picks(self) -> bool:
        """`True` if samples can be taken in any order; `False` if user code splits the batch."""
        return self._rules.split is None and not self._foreign

    def _take(self, samples: Sequence[int], device: torch.device | None, own: bool) -> Any:
        whole = isinstance(samples, range) and len(samples) == self.items
        if self._rules.split is not None:
            value = self.value if whole else self._rules.split(self.value, samples[0], samples[-1] + 1)
            return _move(value, device, own)
        if self._flat is not None and not own:
            return self._flat_part(self._flat, None if whole else samples, device)

        def walk(value: Any, top: bool) -> Any:
            found = _registered(value)
            if found is not None:
                return value if whole else found[1](value, samples[0], samples[-1] + 1)
            if isinstance(value, torch.Tensor):
                if whole or not self._is_cut(value):
                    return _move_tensor(value, device, own)
                if value.is_nested:
                    rows = list(value.unbind())
                    taken = [rows[index] for index in samples]
                    return _move_tensor(
                        torch.nested.as_nested_tensor(taken, layout=value.layout), device, own
                    )
                return _move_tensor(self._taken(value, samples), device, own)
            if _is_array(value):
                cut = value[list(samples)] if not whole and value.shape[:1] == (self.items,) else value
                return cut.copy() if own else cut
            if isinstance(value, PackedSequence):
                return _cut_packed(value, list(samples)).to(device)
            if isinstance(value, UserDict):
                same = copy.copy(value)
                same.data = {key: walk(entry, False) for key, entry in value.items()}
                return same
            if isinstance(value, Mapping):
                entries = {key: walk(entry, False) for key, entry in value.items()}
                return entries if type(value) is dict else type(value)(entries)  # type: ignore[call-arg]
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                fields = [field for field in dataclasses.fields(value) if field.init]
                return dataclasses.replace(
                    value, **{field.name: walk(getattr(value, field.name), False) for field in fields}
                )
            if isinstance(value, (list, tuple)):
                if self._is_samples(value, top):
                    # The contents of a sample are not split.
                    return type(value)(_move(value[index], device, own) for index in samples)
                cut = list(value) if _leaves(value) else [walk(entry, False) for entry in value]
                return type(value)(*cut) if is_namedtuple(value) else type(value)(cut)
            return value

        return walk(self.value, True)

    def _taken(self, tensor: torch.Tensor, samples: Sequence[int]) -> torch.Tensor:
        along = self._along(tensor)
        if isinstance(samples, range):
            return tensor.narrow(along, samples.start, len(samples))
        return tensor.index_select(along, torch.tensor(samples, device=tensor.device))

    def _flat_part(
        self, entries: list[torch.Tensor], samples: Sequence[int] | None, device: torch.device | None
    ) -> Any:
        """Return the samples of a flat batch, which consists of tensors only."""
        if samples is not None:
            entries = [
                self._taken(entry, samples) if is_cut else entry
                for entry, is_cut in zip(entries, self._layout.cut, strict=True)
            ]
        if device is not None:
            entries = [
                entry if entry.device == device else entry.to(device, non_blocking=True) for entry in entries
            ]
        kind = type(self.value)
        if kind is dict:
            return dict(zip(self.value, entries, strict=True))
        return entries[0] if kind is torch.Tensor else kind(entries)

    def versions(self) -> list[int]:
        """Return the version counter of each tensor; in-place writes increment it."""
        if self._flat is not None:
            return [entry._version for entry in self._flat]
        found: list[int] = []
        visit(self.value, lambda tensor: found.append(tensor._version))
        return found

    def columns(self) -> list[Column]:
        """Return the values of each field that is split, sample by sample."""
        if self._flat is not None and not self._rules.dimension:
            return [
                Column(field.detach() if field.requires_grad else field, None, self.items)
                for field, is_cut in zip(self._flat, self._layout.cut, strict=True)
                if is_cut and field.layout is torch.strided
            ]
        return columns(self.value, self.items, self._rules.dimension, self._is_cut, self._is_samples)

    @property
    def structure(self) -> str:
        """The layout of the batch without sequence lengths."""
        return self._layout.structure if self._flat is not None else self._structure

    def _along(self, tensor: torch.Tensor) -> int:
        """Return a tensor's batch dimension: the one named by the user, or the first if the tensor
        lacks it.
        """
        return self._rules.dimension if tensor.dim() > self._rules.dimension else 0

    def _is_cut(self, tensor: torch.Tensor) -> bool:
        return bool(
            tensor.dim() > 0
            and tensor.size(self._along(tensor)) == self.items
            and id(tensor) not in self._shared
        )

    def _is_samples(self, value: Any, top: bool) -> bool:
        """Return `True` if a list has one entry for each sample."""
        if is_namedtuple(value) or len(value) != self.items:
            return False
        if not _is_fields(value):
            return True
        # Tensors that all have the batch dimension are fields; the samples of a ragged batch do not have it.
        tensors = [entry for entry in value if isinstance(entry, torch.Tensor)]
        return not top and bool(tensors) and not all(self._is_cut(entry) for entry in tensors)

    def _survey(self, value: Any, sizes: Counter[int], lists: list[Any], top: bool) -> None:
        found = _registered(value)
        if found is not None:
            self._foreign = True
            sizes[found[0](value)] += 1000
        elif isinstance(value, torch.Tensor):
            if value.dim() > 0 and id(value) not in self._shared:
                # If the user named the batch dimension, tensors that have it take precedence.
                sizes[value.size(self._along(value))] += 1 + 1000 * (
                    self._rules.dimension and value.dim() > self._rules.dimension
                )
        elif _is_array(value):
            if value.ndim > 0:
                sizes[value.shape[0]] += 1
        elif isinstance(value, PackedSequence):
            sizes[int(value.batch_sizes[0])] += 1000
        elif isinstance(value, Mapping):
            for entry in value.values():
                self._survey(entry, sizes, lists, False)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                self._survey(getattr(value, field.name), sizes, lists, False)
        elif isinstance(value, (list, tuple)) and value:
            if top and _is_fields(value):
                for entry in value:
                    self._survey(entry, sizes, lists, False)
            elif not is_namedtuple(value):
                lists.append(value)

    @staticmethod
    def _guess(sizes: Counter[int], lists: list[Any]) -> int:
        """Return the number of samples: the most frequent first dimension, or the length of the lists of
        samples.
        """
        lengths = Counter(len(entry) for entry in lists)
        if not sizes and not lengths:
            raise ValueError(
                "this batch has no dimension to split: it contains no tensor and no list of samples\n"
                "hint: return the number of samples with `batch_size=fn(batch)` and split it with "
                "`split=fn(batch, start, stop)`, or register its type with `memfit.register_batch_type`"
            )
        # The length of a list of samples decides; if tensors have that dimension too, both agree.
        if lengths:
            length, _ = lengths.most_common(1)[0]
            fields = all(isinstance(entry, torch.Tensor) for entries in lists for entry in entries)
            if not sizes or not fields or length in sizes:
                return length
        most = max(sizes.values())
        # In a tie, the first one found.
        return next(size for size, count in sizes.items() if count == most)

    def _describe(self, value: Any, top: bool) -> None:
        if isinstance(value, torch.Tensor):
            if self._is_cut(value) and not value.is_nested:
                along = self._along(value)
                inner = value.shape[:along] + value.shape[along + 1 :]
                kind = str(value.dtype).removeprefix("torch.")
                self._shapes.append(f"{kind}{list(inner)}")
                self._kinds.append(f"{kind}:{value.dim()}")
                self._elements += inner.numel()
        elif isinstance(value, Mapping):
            for entry in value.values():
                self._describe(entry, False)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                self._describe(getattr(value, field.name), False)
        elif isinstance(value, (list, tuple)):
            if self._is_samples(value, top):
                costs = [_numbers(entry) for entry in value]
                known = self._costs or [0] * len(costs)
                self._costs = [before + cost for before, cost in zip(known, costs, strict=True)]
                self._shapes.append("samples")
                self._kinds.append("samples")
            elif not _leaves(value):
                for entry in value:
                    self._describe(entry, False)
        elif _is_array(value) and value.shape[:1] == (self.items,):
            self._shapes.append(f"{value.dtype}{list(value.shape[1:])}")
            self._kinds.append(f"{value.dtype}:{value.ndim}")
            self._elements += int(value[0].size)
        else:
            self._shapes.append(type(value).__name__)
            self._kinds.append(type(value).__name__)


def _flat(value: Any) -> list[torch.Tensor] | None:
    """Return a batch's tensors if it is a single tensor or a flat container of tensors, else `None`."""
    kind = type(value)
    if kind is torch.Tensor:
        entries = [value]
    elif kind is tuple or (kind is list and _is_fields(value)):
        entries = list(value)
    elif kind is dict:
        entries = list(value.values())
    else:
        return None
    for entry in entries:
        if type(entry) is not torch.Tensor or entry.is_nested:
            return None
    # A registered type of tensor or list is split by its own function.
    return entries if not _REGISTERED or _registered(value) is None else None


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _move(value: Any, device: torch.device | None, own: bool) -> Any:
    """Move all tensors of a micro-batch to a device; with `own`, copy them."""
    return tree_map_only(torch.Tensor, lambda tensor: _move_tensor(tensor, device, own), value)


def _move_tensor(tensor: torch.Tensor, device: torch.device | None, own: bool) -> torch.Tensor:
    moved = tensor if device is None else tensor.to(device, non_blocking=True)
    return moved.clone() if own and moved.data_ptr() == tensor.data_ptr() else moved


def _leaves(value: Any) -> bool:
    """Return `True` if a list holds only plain values, such as file names."""
    return all(isinstance(entry, (str, bytes, int, float, type(None))) for entry in value)


def visit(value: Any, seen: Callable[[torch.Tensor], Any]) -> None:
    """Call `seen` for every tensor of a batch."""
    if isinstance(value, torch.Tensor):
        seen(value)
    elif isinstance(value, Mapping):
        for entry in value.values():
            visit(entry, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            visit(getattr(value, field.name), seen)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            visit(entry, seen)


def _numbers(value: Any) -> int:
    """Return the number of tensor elements in a sample."""
    total = 0

    def add(tensor: torch.Tensor) -> None:
        nonlocal total
        total += tensor.numel()

    visit(value, add)
    return total


def _cut_packed(value: PackedSequence, samples: list[int]) -> PackedSequence:
    padded, lengths = pad_packed_sequence(value, batch_first=True)
    lengths = lengths[samples]
    return pack_padded_sequence(
        padded[samples, : int(lengths.max())], lengths, batch_first=True, enforce_sorted=False
    )
