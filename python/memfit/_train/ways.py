"""Selects the samples of a batch to compare, and the ways to divide them."""

from __future__ import annotations

from collections.abc import Sequence

from .batches import Batch


def chosen(entry: Batch, first: int, items: int) -> Sequence[int]:
    """Return `items` samples from `first` on, with one of them twice, since losses may look for equal
    samples.
    """
    if items < 4 or not entry.picks:
        return range(first, first + items)
    return [first, first + 1, first, *range(first + 2, first + items - 1)]


def divisions(items: int, size: int, pairs: bool) -> tuple[tuple[int, ...], ...]:
    """Return ways to divide the samples: in micro-batches of the training's size, one by one, and
    unevenly.
    """
    least = 2 if pairs and items >= 4 else 1
    found: list[tuple[int, ...]] = []
    for most in dict.fromkeys((min(size, items - 1), least, items - least)):
        most = max(most, least)
        sizes = [most] * (items // most)
        rest = items - sum(sizes)
        if rest >= least:
            sizes.append(rest)
        elif rest:
            sizes[-1] += rest
        way = tuple(sizes)
        if len(way) > 1 and way not in found:
            found.append(way)
    return tuple(found)
