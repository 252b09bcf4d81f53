"""One run of some samples in a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .batches import Batch
from .comparing import Comparing, Draws
from .slots import Advance


class Trial(NamedTuple):
    """One run of some samples, whole or in micro-batches; `counts` are those of the whole run."""

    entry: Batch
    samples: Sequence[int]
    sizes: tuple[int, ...]
    draws: Draws
    is_wide: bool = False
    counts: dict[str, float] | None = None
    # Invert comparisons for one sample.
    opposite: bool = False
    # Invert comparisons of numbers of the batch, and read larger or smaller ones.
    otherwise: int = 0
    # Values in Python that are counted up or scaled before the run, and by how much.
    advanced: tuple[frozenset[str], Advance] | None = None

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Return the start and end of each micro-batch."""
        return itertools.pairwise(itertools.accumulate(self.sizes, initial=0))

    def parts(self, sizes: tuple[int, ...], counts: dict[str, float]) -> Trial:
        """Return the run of the same samples in micro-batches."""
        return self._replace(sizes=sizes, counts=counts)

    def compare(self, start: int, stop: int) -> Comparing:
        """Return a mode that records the random numbers of the whole run, or replays them for a
        micro-batch.
        """
        own = None if self.counts is None else (start, stop, len(self.samples))
        limited = self.advanced is not None
        return Comparing(self.draws, own, self.is_wide, self.opposite, self.otherwise, limited)
