"""Differences between the samples of a batch that may decide how much each sample counts.

A mean over labels that are not ignored equals a mean over samples only if each sample ignores equally many. A
comparison is therefore valid for batches that vary in the same ways as the compared one. Whatever varies for
the first time is compared again, on samples that do.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .batches import Batch
from .columns import Column

_OPERATORS: dict[str, Any] = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# A comparison and its negation vary in the same samples.
_SAME = {"ne": "eq", "ge": "lt", "le": "gt"}
# Positions that a comparison checks for missing values, which are not equal to themselves.
MISSING = "missing"
# Place of the condition for samples of different sizes.
_SIZES = -1


class Constant(NamedTuple):
    """A constant that values of a batch were compared with. For floating-point numbers, `width` is the number
    of compared values of each sample, since most comparisons are of something else than the batch.
    """

    name: str
    value: float
    width: int | None


class Condition(NamedTuple):
    """A quantity of each sample: the position of a column in the batch, and the sum of its values, their
    projection on random numbers, or the number of values that fulfil a comparison.
    """

    place: int
    name: str
    value: float


class Variation:
    """Quantities in which the compared samples varied, and those in which they were equal."""

    def __init__(self) -> None:
        self._constants: set[Constant] = set()
        self._varied: set[Condition] = set()
        # Conditions that have not varied yet, by batch layout: they are checked in each batch.
        self._alike: dict[str, list[Condition]] = {}

    def counts_by(self, constants: set[Constant]) -> None:
        """Add constants that values were seen to be compared with."""
        known = {each._replace(name=_SAME.get(each.name, each.name)) for each in constants}
        if not known <= self._constants:
            self._constants |= known
            self._alike.clear()

    def new(self, entry: Batch) -> list[int]:
        """Return pairs of samples that differ in quantities in which no compared samples varied."""
        found: list[int] = []
        if entry.costs is not None and Condition(_SIZES, "size", 0.0) not in self._varied:
            found += _differing(torch.tensor(entry.costs)) or ()
        alike = self._alike.get(entry.shape)
        if alike == []:
            return found
        columns = entry.columns()
        conditions = self._conditions(columns) if alike is None else alike
        for condition in conditions:
            if condition not in self._varied and condition.place < len(columns):
                if _is_alike(columns[condition.place], condition):
                    continue
                found += _differing(_counted(columns[condition.place], condition)) or ()
        if not found:
            self._alike[entry.shape] = [each for each in conditions if each not in self._varied]
        return list(dict.fromkeys(found))

    def compared(self, entry: Batch, samples: Sequence[int]) -> None:
        """Record that these samples were compared."""
        if entry.costs is not None and len({entry.costs[index] for index in samples}) > 1:
            self._varied.add(Condition(_SIZES, "size", 0.0))
        columns = entry.columns()
        for condition in self._conditions(columns):
            if condition not in self._varied:
                counted = _counted(columns[condition.place], condition)[list(samples)]
                if _differing(counted) is not None:
                    self._varied.add(condition)
        self._alike.clear()

    def _conditions(self, columns: list[Column]) -> list[Condition]:
        found: list[Condition] = []
        for place, column in enumerate(columns):
            is_float = column.values.dtype.is_floating_point
            found += [Condition(place, "sum", 0.0), Condition(place, "projection", 0.0)]
            found += [
                Condition(place, constant.name, constant.value)
                for constant in sorted(self._constants, key=str)
                if not column.values.dtype.is_complex
                and (constant.width == column.width if is_float else constant.width is None)
            ]
        return found


def _counted(column: Column, condition: Condition) -> torch.Tensor:
    """Return the quantity for each sample."""
    values = column.values
    if condition.name == "sum":
        return column.sums(values)
    if condition.name == "projection":
        # Samples with the same sum may still differ, such as weights of several losses.
        if column.owners is not None:
            return column.sums(values)
        rows = values.reshape(column.items, -1)
        rows = rows if rows.dtype.is_floating_point or rows.dtype.is_complex else rows.float()
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(rows.shape[1], generator=generator)
        return rows @ direction.to(rows.device, rows.dtype)
    if condition.name == MISSING:
        return column.sums(values != values)
    return column.sums(_OPERATORS[condition.name](values, condition.value))


def _is_alike(column: Column, condition: Condition) -> bool:
    """Return `True` if none of the samples' values fulfils a comparison, or each does, or if all samples
    have the same values. This is faster than computing the quantity.
    """
    if not column.values.numel():
        return False
    if condition.name not in _OPERATORS:
        if column.owners is not None:
            return False
        rows = column.values.reshape(column.items, -1)
        return bool((rows == rows[:1]).all())
    fulfilled = _OPERATORS[condition.name](column.values, condition.value)
    return not bool(fulfilled.any()) or bool(fulfilled.all())


def _differing(counted: torch.Tensor) -> tuple[int, int] | None:
    """Return the first sample that differs from sample 0, and one that does not differ from it."""
    if counted.numel() < 2:
        return None
    # A missing value is not equal to itself.
    differs = (counted != counted[0]) & ((counted == counted) | (counted[0] == counted[0]))
    place = int(differs.to(torch.uint8).argmax())
    return (place - 1, place) if bool(differs[place]) and place > 0 else None
