"""Differences between the samples of a batch that may decide how much each sample counts.

A mean over labels that are not ignored equals a mean over samples only if each sample ignores equally many. A
comparison is therefore valid for batches that vary in the same ways as the compared one. Whatever varies for
the first time is compared again, on samples that do.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .batches import Batch

_OPERATORS: dict[str, Any] = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# A comparison and its negation vary in the same samples.
_SAME = {"ne": "eq", "ge": "lt", "le": "gt"}
# The position of a tensor in the batch, and the quantity per sample: its sum, or the number of elements that
# fulfil a comparison.
Condition = tuple[int, str, float]


class Variation:
    """Quantities in which the compared samples varied, and those in which they were equal."""

    def __init__(self) -> None:
        self._constants: set[tuple[str, float]] = set()
        self._varied: set[Condition] = set()
        # Conditions that have not varied yet, by batch layout: they are checked in each batch.
        self._alike: dict[str, list[Condition]] = {}

    def counts_by(self, constants: set[tuple[str, float]]) -> None:
        """Add constants that integers were seen to be compared with."""
        known = {(_SAME.get(name, name), value) for name, value in constants}
        if not known <= self._constants:
            self._constants |= known
            self._alike.clear()

    def new(self, entry: Batch) -> int | None:
        """Return the first sample that differs from the one before it in a quantity in which no compared
        samples varied, or `None`.
        """
        if entry.costs is not None and (-1, "size", 0.0) not in self._varied:
            return _first(torch.tensor(entry.costs))
        alike = self._alike.get(entry.shape)
        if alike == []:
            return None
        fields = entry.fields()
        for condition in self._conditions(fields) if alike is None else alike:
            if condition not in self._varied and condition[0] < len(fields):
                found = _first(_counted(fields[condition[0]], condition, entry.items))
                if found is not None:
                    return found
        self._alike[entry.shape] = [each for each in self._conditions(fields) if each not in self._varied]
        return None

    def compared(self, entry: Batch, samples: Sequence[int]) -> None:
        """Record that these samples were compared."""
        if entry.costs is not None and len({entry.costs[index] for index in samples}) > 1:
            self._varied.add((-1, "size", 0.0))
        fields = entry.fields()
        for condition in self._conditions(fields):
            if condition not in self._varied:
                counted = _counted(fields[condition[0]], condition, entry.items)[list(samples)]
                if _first(counted) is not None:
                    self._varied.add(condition)
        self._alike.clear()

    def _conditions(self, fields: list[torch.Tensor]) -> list[Condition]:
        found: list[Condition] = []
        for place, tensor in enumerate(fields):
            found.append((place, "sum", 0.0))
            if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
                found += [(place, name, value) for name, value in sorted(self._constants)]
        return found


def _counted(tensor: torch.Tensor, condition: Condition, items: int) -> torch.Tensor:
    """Return the quantity for each sample."""
    _, name, value = condition
    if name == "sum":
        return tensor.reshape(items, -1).sum(1)
    return _OPERATORS[name](tensor, value).reshape(items, -1).sum(1)


def _first(counted: torch.Tensor) -> int | None:
    """Return the first sample that differs from sample 0, or `None`."""
    if counted.numel() < 2:
        return None
    differs = counted != counted[0]
    place = int(differs.to(torch.uint8).argmax())
    return place if bool(differs[place]) else None
