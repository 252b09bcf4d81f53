"""Selects the samples of a batch to compare, and the ways to divide them."""

from __future__ import annotations

from collections.abc import Sequence

from .batches import Batch

# Number of samples to compare: enough for uneven micro-batches, and to tell batch dimensions from others.
_COMPARED_SAMPLES = 6
# Maximum number of samples, where more of them differ in ways that no compared samples did.
_MAX_SAMPLES = 16


def chosen(entry: Batch, wanted: Sequence[int], first: int, least: int = 0) -> Sequence[int]:
    """Return the samples to compare: the wanted ones, others from `first` on, and one of them twice, since
    losses may look for equal samples.
    """
    items = min(entry.items, max(least, _COMPARED_SAMPLES, min(len(wanted) + 1, _MAX_SAMPLES)))
    if items < 4 or not entry.picks:
        start = wanted[0] if wanted else first
        start = max(0, min(start, entry.items - items))
        return range(start, start + items)
    others = ((first + offset) % entry.items for offset in range(entry.items))
    picked = list(dict.fromkeys([*wanted, *others]))[: items - 1]
    # Micro-batches get what the user's own batch has: sorted samples, and never the equal ones side by side.
    picked.sort()
    picked.insert(2, picked[0])
    return picked


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
