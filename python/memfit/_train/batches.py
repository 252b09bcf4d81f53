"""What a batch is made of, and parts of it.

A batch is whatever a loader gives: tensors, and containers of them. What has the batch dimension is cut along
it, and all else goes to every part as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, UserDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Items = Callable[[Any], int]
Cut = Callable[[Any, int, int], Any]

_REGISTERED: dict[type, tuple[Items, Cut]] = {}
# So many forms are kept: batches of sequences may have one for every length.
_FORMS = 1 << 12


def register_batch_type(kind: type, items: Items, cut: Cut) -> None:
    """Let `memfit.Step` split batches of a type of your own.

    `items(value)` is the number of samples, `cut(value, start, stop)` the value with the samples from start
    to stop.
    """
    _REGISTERED[kind] = (items, cut)
    Batch._known.clear()


def _registered(value: Any) -> tuple[Items, Cut] | None:
    for kind in type(value).__mro__:
        if kind in _REGISTERED:
            return _REGISTERED[kind]
    return None


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_fields(value: Any) -> bool:
    """Whether a list or tuple holds a batch's fields, and not its samples."""
    if _is_namedtuple(value):
        return True
    return not (value and all(isinstance(entry, (Mapping, str, bytes, int, float)) for entry in value))


@dataclasses.dataclass(frozen=True)
class Form:
    """What batches that are built alike have in common: several tensors, and nothing in them that has to be
    walked.
    """

    items: int
    shape: str
    elements: int
    # Of each tensor, whether it is cut.
    cut: tuple[bool, ...]


class Batch:
    """A batch, and where it can be cut."""

    # Forms of flat batches, by what they are made of: most of a training's batches have one of a few.
    _known: ClassVar[dict[Any, Form]] = {}

    def __init__(self, value: Any, size: int | None = None) -> None:
        self.value = value
        # What each of several losses counts over the whole batch, where that is known beforehand.
        self.counts: dict[str, float] | None = None
        self._ignored: list[float] | None = None
        self._flat = _flat(value)
        key = None
        if self._flat is not None:
            key = (type(value), size, *[(entry.shape, entry.dtype) for entry in self._flat])
            form = self._known.get(key)
            if form is not None:
                self._form = form
                self.items, self.shape, self.elements = form.items, form.shape, form.elements
                self.costs: list[int] | None = None
                return
        sizes: Counter[int] = Counter()
        lists: list[Any] = []
        self._survey(value, sizes, lists, top=True)
        self.items = size if size is not None else self._guess(sizes, lists)
        # Fields by their place: whether they are cut.
        self._shapes: list[str] = []
        self._elements = 0
        self._costs: list[int] | None = None
        self._describe(value, top=True)
        # What the samples look like, without their number.
        self.shape = " ".join(self._shapes)
        # Numbers in one sample, the largest one where they differ; and in each of them, where they do.
        costs: list[int] = self._costs or []
        self.elements = max(self._elements + max(costs, default=0), 1)
        self.costs = [self._elements + cost for cost in costs] if len(set(costs)) > 1 else None
        if key is not None and self._flat is not None:
            cut = tuple(self._is_cut(entry) for entry in self._flat)
            self._form = Form(self.items, self.shape, self.elements, cut)
            if len(self._known) >= _FORMS:
                self._known.clear()
            self._known[key] = self._form

    def part(self, start: int, stop: int, device: torch.device | None, own: bool = False) -> Any:
        """The samples from start to stop, on a device; with `own`, in memory that is not the batch's."""
        whole = start == 0 and stop == self.items
        if self._flat is not None and not own:
            return self._flat_part(self._flat, None if whole else slice(start, stop), device)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            moved = tensor if device is None else tensor.to(device, non_blocking=True)
            return moved.clone() if own and moved.data_ptr() == tensor.data_ptr() else moved

        def walk(value: Any, top: bool) -> Any:
            found = _registered(value)
            if found is not None:
                return value if whole else found[1](value, start, stop)
            if isinstance(value, torch.Tensor):
                if whole or not self._is_cut(value):
                    return place(value)
                if value.is_nested:
                    rows = list(value.unbind())[start:stop]
                    return place(torch.nested.as_nested_tensor(rows, layout=value.layout))
                return place(value[start:stop])
            if isinstance(value, PackedSequence):
                return _cut_packed(value, start, stop).to(device)
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
                    value = value[start:stop]
                cut = list(value) if _leaves(value) else [walk(entry, False) for entry in value]
                return type(value)(*cut) if _is_namedtuple(value) else type(value)(cut)
            return value

        return walk(self.value, True)

    def _flat_part(self, entries: list[torch.Tensor], cut: slice | None, device: torch.device | None) -> Any:
        """The same, where the batch is tensors side by side."""
        if cut is not None:
            entries = [
                entry[cut] if is_cut else entry for entry, is_cut in zip(entries, self._form.cut, strict=True)
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
        """How often each tensor of the batch was written to."""
        if self._flat is not None:
            return [entry._version for entry in self._flat]
        found: list[int] = []
        visit(self.value, lambda tensor: found.append(tensor._version))
        return found

    def ignored(self, start: int, stop: int, known: list[tuple[int, int]]) -> float | None:
        """The share of the labels of some samples that are ignored; None where there are none. Labels are
        those of batches as Hugging Face's, and what is `known` to be: tensors by their place in the batch,
        with the label that is ignored.
        """
        if self._ignored is None:
            labels = self._labels(known)
            if not labels:
                return None
            # Of all samples at once: a device is waited for a single time.
            rows = torch.cat([(each == label).reshape(self.items, -1) for each, label in labels], 1)
            self._ignored = [count / max(rows.size(1), 1) for count in rows.sum(1).tolist()]
        return sum(self._ignored[start:stop]) / max(stop - start, 1)

    def _labels(self, known: list[tuple[int, int]]) -> list[tuple[torch.Tensor, int]]:
        labels = self.value.get("labels") if hasattr(self.value, "get") else None
        if isinstance(labels, torch.Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            return [(labels, -100)]
        found: list[torch.Tensor] = []
        if known:
            visit(self.value, found.append)
        return [
            (found[place], label)
            for place, label in known
            if place < len(found) and self._is_cut(found[place])
        ]

    def _is_cut(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.dim() > 0 and tensor.size(0) == self.items)

    def _is_samples(self, value: Any, top: bool) -> bool:
        """Whether a list has one entry for each sample."""
        if _is_namedtuple(value) or len(value) != self.items:
            return False
        if not _is_fields(value):
            return True
        # Several tensors that all have the batch dimension are fields; the samples of a ragged batch do not.
        tensors = [entry for entry in value if isinstance(entry, torch.Tensor)]
        return not top and bool(tensors) and not all(self._is_cut(entry) for entry in tensors)

    def _survey(self, value: Any, sizes: Counter[int], lists: list[Any], top: bool) -> None:
        found = _registered(value)
        if found is not None:
            sizes[found[0](value)] += 1000
        elif isinstance(value, torch.Tensor):
            if value.dim() > 0:
                sizes[value.size(0)] += 1
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
            elif not _is_namedtuple(value):
                lists.append(value)

    @staticmethod
    def _guess(sizes: Counter[int], lists: list[Any]) -> int:
        """The number of samples: what most tensors have first, or the length of the lists of samples."""
        lengths = Counter(len(entry) for entry in lists)
        if not sizes and not lengths:
            raise ValueError(
                "this batch has nothing along which it could be split: no tensor, and no list of samples\n"
                "hint: teach memfit its type with `memfit.register_batch_type`"
            )
        # A list of samples names its own length; where tensors have it too, both agree.
        if lengths:
            length, _ = lengths.most_common(1)[0]
            fields = all(isinstance(entry, torch.Tensor) for entries in lists for entry in entries)
            if not sizes or not fields or length in sizes:
                return length
        most = max(sizes.values())
        # Of equally many, the first that was met.
        return next(size for size, count in sizes.items() if count == most)

    def _describe(self, value: Any, top: bool) -> None:
        if isinstance(value, torch.Tensor):
            if self._is_cut(value) and not value.is_nested:
                inner = value.shape[1:]
                self._shapes.append(f"{str(value.dtype).removeprefix('torch.')}{list(inner)}")
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
            elif not _leaves(value):
                for entry in value:
                    self._describe(entry, False)
        else:
            self._shapes.append(type(value).__name__)


def _flat(value: Any) -> list[torch.Tensor] | None:
    """A batch's tensors, where it is nothing but tensors side by side, or one of them."""
    kind = type(value)
    if kind is torch.Tensor:
        entries = [value]
    elif kind is tuple or kind is list:
        entries = list(value)
    elif kind is dict:
        entries = list(value.values())
    else:
        return None
    for entry in entries:
        if type(entry) is not torch.Tensor or entry.is_nested:
            return None
    # Somebody who registered tensors or lists has a way of their own.
    return entries if not _REGISTERED or _registered(value) is None else None


def _leaves(value: Any) -> bool:
    """Whether a list holds plain values only, such as names of files."""
    return all(isinstance(entry, (str, bytes, int, float, type(None))) for entry in value)


def visit(value: Any, seen: Callable[[torch.Tensor], Any]) -> None:
    """Show all tensors of a batch."""
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
    """How many numbers are in a sample."""
    total = 0

    def add(tensor: torch.Tensor) -> None:
        nonlocal total
        total += tensor.numel()

    visit(value, add)
    return total


def _are_fields(parts: list[Any], sizes: list[int]) -> bool:
    """Whether lists hold the fields of outputs, which can be put end to end, and not one output for each
    sample.
    """
    first = parts[0]
    if not first or any(len(part) != len(first) for part in parts):
        return False
    if all(len(part) == size for part, size in zip(parts, sizes, strict=True)) and not all(
        isinstance(entry, torch.Tensor) and entry.shape[:1] == (size,)
        for part, size in zip(parts, sizes, strict=True)
        for entry in part
    ):
        # As many as there are samples, and no batches themselves: one for each sample.
        return False
    return all(
        isinstance(part[index], torch.Tensor) and part[index].shape[1:] == first[index].shape[1:]
        for part in parts
        for index in range(len(first))
    )


def _cut_packed(value: PackedSequence, start: int, stop: int) -> PackedSequence:
    padded, lengths = pad_packed_sequence(value, batch_first=True)
    lengths = lengths[start:stop]
    return pack_padded_sequence(
        padded[start:stop, : int(lengths.max())], lengths, batch_first=True, enforce_sorted=False
    )


def join(parts: list[Any], sizes: list[int]) -> Any:
    """Puts outputs of parts of so many samples together as the output of the whole: the opposite of
    cutting.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(parts) if first.dim() > 0 else torch.stack(parts)
    if isinstance(first, UserDict):
        same = copy.copy(first)
        same.data = {key: join([part[key] for part in parts], sizes) for key in first}
        return same
    if isinstance(first, Mapping):
        entries = {key: join([part[key] for part in parts], sizes) for key in first}
        return entries if type(first) is dict else type(first)(**entries)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return dataclasses.replace(
            first,
            **{
                field.name: join([getattr(part, field.name) for part in parts], sizes)
                for field in dataclasses.fields(first)
                if field.init
            },
        )
    if isinstance(first, (list, tuple)):
        if _is_namedtuple(first):
            return type(first)(*(join(list(entries), sizes) for entries in zip(*parts, strict=True)))
        if isinstance(first, list) and not _are_fields(parts, sizes):
            return [entry for part in parts for entry in part]
        return type(first)(join(list(entries), sizes) for entries in zip(*parts, strict=True))
    return first if all(part == first for part in parts) else list(parts)
