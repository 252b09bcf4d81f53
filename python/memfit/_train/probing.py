"""What a loader's batches will need, before the training meets them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .batches import Batch
from .loading import LoaderState
from .randomness import RandomState

if TYPE_CHECKING:
    from .step import Step

# Shapes that are run, the smallest and the largest among them: what lies between two is bounded by both.
_RUN = 4


@dataclass(frozen=True)
class Probe:
    """What `memfit.Step.probe` found."""

    batches: int
    """How many of the loader's batches were looked at."""
    complete: bool
    """Whether these were all."""
    shapes: int
    """How many shapes of samples they have."""
    largest: str
    """The shape of the largest batch's samples."""
    items: int
    """How many samples it has."""
    micro_batch: int
    """In parts of how many samples it will run, once the optimizer has its state."""
    peak: int | None
    """The most that the allocator is foreseen to take then, in bytes; nothing is known of the host's memory.
    """
    budget: int | None
    """What it may take."""

    def __str__(self) -> str:
        looked = (
            f"{self.batches} batches"
            + ("" if self.complete else ", not all of the loader's,")
            + f" in {self.shapes} shapes"
        )
        text = f"{looked}; the largest ({self.items} samples of {self.largest}) runs in parts of {self.micro_batch}"
        if self.peak is None or self.budget is None:
            return text
        return f"{text}: {self.peak / 2**30:.2f} GiB of {self.budget / 2**30:.2f} GiB at most"


def probed(step: Step, loader: Iterable[Any], batches: int, seconds: float) -> Probe:
    """Look at a loader, and try the batches that tell most."""
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
            if len(found) > 4 * _RUN:
                found = {each.shape: each for each in _telling(list(found.values()), 2 * _RUN)}
            looked += 1
            if looked >= batches or time.monotonic() > until:
                complete = False
                break
        if not found:
            raise ValueError("the loader gave no batch: there is nothing to probe")
        chosen = _telling(list(found.values()), _RUN)
        for entry in chosen:
            step._window.attempt(entry)
    finally:
        state.restore()
        numbers.restore()
    worst = max(found.values(), key=_cost)
    states, _ = step._updates.need(coming=True)
    step._meter.begin()
    base = step._meter.floor + states
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


def _telling(entries: list[Batch], most: int) -> list[Batch]:
    """At most so many, spread over the sizes of samples, the smallest and the largest among them; the
    smallest first.
    """
    entries = sorted(entries, key=lambda entry: (entry.elements, entry.items))
    if len(entries) <= most:
        return entries
    places = {round(index * (len(entries) - 1) / (most - 1)) for index in range(most)}
    worst = max(entries, key=_cost)
    chosen = [entry for index, entry in enumerate(entries) if index in places]
    return chosen if worst in chosen else sorted([*chosen, worst], key=lambda entry: entry.elements)
