"""Measures the memory that a loader's batches need before the training starts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from .batches import Batch
from .loading import LoaderState
from .randomness import RandomState

if TYPE_CHECKING:
    from .step import Step

# Number of shapes that are run, with the smallest and the largest, besides the costliest one; they bound the
# need of all shapes in between.
_MAX_SHAPES = 4


@dataclass(frozen=True)
class Probe:
    """The result of `memfit.Step.probe`."""

    batches: int
    """Number of batches that were read from the loader."""
    complete: bool
    """`True` if these were all batches of the loader."""
    shapes: int
    """Number of different sample shapes."""
    largest: str
    """The sample shape of the largest batch."""
    items: int
    """Number of samples in that batch."""
    micro_batch: int
    """Micro-batch size that it will run in, once the optimizer has its state."""
    peak: int | None
    """The largest number of bytes that the allocator is expected to reserve then; `None` on the host."""
    budget: int | None
    """Bytes that it may reserve; `None` on the host."""

    def __str__(self) -> str:
        looked = (
            f"{self.batches} batches"
            + ("" if self.complete else ", not all of the loader's,")
            + f" in {self.shapes} shapes"
        )
        text = (
            f"{looked}; the largest ({self.items} samples of {self.largest}) runs in micro-batches of "
            f"{self.micro_batch}"
        )
        if self.peak is None or self.budget is None:
            return text
        return f"{text}: at most {_core.format_size(self.peak)} of {_core.format_size(self.budget)}"


def probe_loader(step: Step, loader: Iterable[Any], batches: int, seconds: float) -> Probe:
    """Read a loader's batches, and run the most informative ones."""
    numbers, state = RandomState([step.device]), LoaderState(loader)
    found: dict[str, Batch] = {}
    looked, complete = 0, True
    until = time.monotonic() + seconds
    try:
        for batch in step._target.load(loader):
            entry = step.entry(step._target.arrive(batch))
            known = found.get(entry.shape)
            if known is None or _cost(entry) > _cost(known):
                found[entry.shape] = entry
            if len(found) > 4 * _MAX_SHAPES:
                found = {each.shape: each for each in _spread(list(found.values()), 2 * _MAX_SHAPES)}
            looked += 1
            if looked >= batches or time.monotonic() > until:
                complete = False
                break
        if not found:
            raise ValueError("the loader yielded no batch: there is nothing to probe")
        chosen = _spread(list(found.values()), _MAX_SHAPES)
        for entry in chosen:
            step._window.attempt(entry)
    finally:
        state.restore()
        numbers.restore()
    worst = max(found.values(), key=_cost)
    states, _ = step._updates.need(coming=True)
    step._meter.begin()
    base = step._meter.base + states
    most = step._meter.budget()
    size, peak = worst.items, None
    if most is not None:
        wanted = min(worst.items, step._planned.micro_batch or worst.items)
        size = step._controller.largest(worst.shape, worst.elements, wanted, max(most - base, 0)) or 1
        need = step._controller.foreseen(worst.shape, worst.elements, size, size == worst.items)
        peak = base + need if need is not None else None
    elif step._planned.micro_batch:
        size = min(size, step._planned.micro_batch)
    return Probe(looked, complete, len(found), worst.shape, worst.items, size, peak, most)


def _cost(entry: Batch) -> int:
    return entry.elements * entry.items


def _spread(entries: list[Batch], most: int) -> list[Batch]:
    """Select at most this many batches, spread over the sample sizes, with the smallest and the largest;
    sorted by sample size.
    """
    entries = sorted(entries, key=lambda entry: (entry.elements, entry.items))
    if len(entries) <= most:
        return entries
    places = {round(index * (len(entries) - 1) / (most - 1)) for index in range(most)}
    worst = max(entries, key=_cost)
    chosen = [entry for index, entry in enumerate(entries) if index in places]
    return chosen if worst in chosen else sorted([*chosen, worst], key=lambda entry: entry.elements)
