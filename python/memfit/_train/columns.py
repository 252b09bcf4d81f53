"""The contents of a batch as columns, each with the values of one field for every sample."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class Column(NamedTuple):
    """Values of one field: a tensor with the batch dimension first, or the values of all samples one after
    the other with the sample that each belongs to.
    """

    values: torch.Tensor
    owners: torch.Tensor | None
    items: int

    @property
    def width(self) -> int | None:
        """The number of values of each sample; `None` if it differs."""
        return self.values.numel() // self.items if self.owners is None and self.items else None

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Add up such values, or a function of them, for each sample."""
        if self.owners is None:
            return values.reshape(self.items, -1).sum(1)
        kind = torch.float64 if values.dtype.is_floating_point else torch.int64
        return torch.zeros(self.items, dtype=kind).index_add_(0, self.owners, values.to(kind))


def columns(
    value: Any,
    items: int,
    dimension: int,
    is_cut: Callable[[torch.Tensor], bool],
    is_samples: Callable[[Any, bool], bool],
) -> list[Column]:
    """Return everything in a batch that is split."""
    found: list[Column] = []
    numpy = sys.modules.get("numpy")

    def walk(value: Any, top: bool) -> None:
        if isinstance(value, torch.Tensor):
            if is_cut(value) and not value.is_nested and value.layout is torch.strided:
                first = value.movedim(dimension, 0) if dimension and value.dim() > dimension else value
                found.append(Column(first.detach(), None, items))
        elif numpy is not None and isinstance(value, numpy.ndarray):
            if value.shape[:1] == (items,) and value.dtype.kind in "biuf":
                found.append(Column(torch.as_tensor(numpy.ascontiguousarray(value)), None, items))
        elif isinstance(value, Mapping):
            for entry in value.values():
                walk(entry, False)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                walk(getattr(value, field.name), False)
        elif isinstance(value, (list, tuple)):
            if is_samples(value, top):
                found.extend(_of_samples(value))
            else:
                for entry in value:
                    walk(entry, False)

    walk(value, True)
    return found


def _of_samples(samples: Any) -> list[Column]:
    """Return a column for each leaf of a sample; one for all of them if samples differ in structure."""
    leaves: list[list[torch.Tensor]] = []
    for sample in samples:
        own: list[torch.Tensor] = []
        _visit(sample, own)
        leaves.append(own)
    if len({len(own) for own in leaves}) == 1:
        return [_joined([[leaf] for leaf in place]) for place in zip(*leaves, strict=True)]
    return [_joined(leaves)]


def _joined(leaves: list[list[torch.Tensor]]) -> Column:
    lengths = torch.tensor([sum(leaf.numel() for leaf in own) for own in leaves])
    values = [leaf.detach().reshape(-1).cpu() for own in leaves for leaf in own]
    if int(lengths.min()) == int(lengths.max()):
        return Column(torch.cat(values).reshape(len(leaves), -1), None, len(leaves))
    return Column(torch.cat(values), torch.repeat_interleave(torch.arange(len(leaves)), lengths), len(leaves))


def _visit(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if not value.is_nested and value.layout is torch.strided:
            found.append(value)
    elif isinstance(value, (bool, int, float)):
        found.append(torch.tensor(value))
    elif isinstance(value, Mapping):
        for entry in value.values():
            _visit(entry, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _visit(getattr(value, field.name), found)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _visit(entry, found)
    elif type(value).__module__ == "numpy" and value.dtype.kind in "biuf":
        found.append(torch.as_tensor(value))
