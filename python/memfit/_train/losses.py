"""Several losses in a window: what each counts, and what each is divided by.

Each has a mean of its own over the window, but the window has one gradient, and one factor for it in the end.
While they stay in proportion, that factor puts all of them right. Where they do not, nobody knows what to
divide by before the window ran: it is run again then, by what all of it was seen to count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

# Counts of a loss, and what it was divided by, on one rank.
Books = tuple[dict[str, float], dict[str, float]]

# Proportions that differ by less are the same, rounded.
_ROUNDING = 1e-9


class Losses:
    """The books of the open window."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.divisors: dict[str, float] = {}
        # What a window counts that is run again to be divided by it.
        self._known: dict[str, float] = {}
        # The books of another process, which had this window before.
        self._inherited: Books = ({}, {})

    def divide(self, counts: Mapping[str, float], first: float) -> None:
        """Set what losses are divided by that are counted for the first time, the first of all by `first`."""
        for name, count in counts.items():
            if count and name not in self.divisors:
                self.divisors[name] = self._known.get(name) or self._in_proportion(count, counts, first)

    def _in_proportion(self, count: float, counts: Mapping[str, float], first: float) -> float:
        for other, divisor in self.divisors.items():
            if counts.get(other):
                return divisor * count / counts[other]
        return first

    def count(self, counts: Mapping[str, float]) -> None:
        """A part counted so much of each."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0.0) + count

    def weigh(self, ranks: Sequence[Books], together: bool) -> tuple[float, dict[str, float], bool]:
        """What this rank's gradient is to be multiplied by, what all ranks counted, and whether that makes a
        mean of each loss; `together`, where gradients have been summed over ranks already.
        """
        total: dict[str, float] = {}
        for counts, _ in ranks:
            for name, count in counts.items():
                total[name] = total.get(name, 0.0) + count
        factors = [
            [divisors[name] / total[name] for name, count in counts.items() if count]
            for counts, divisors in ranks
        ]
        groups = [list(chain.from_iterable(factors))] if together else factors
        fits = all(max(group) - min(group) <= _ROUNDING * max(group) for group in groups if group)
        mine = [self.divisors[name] / total[name] for name, count in self.counts.items() if count]
        anyone = mine or (groups[0] if together else [])
        return (anyone[0] if anyone else 1.0), total, fits

    def run_again(self, total: dict[str, float]) -> None:
        """The window is run again, and counts so much."""
        self._known = total
        self.rewind()

    @property
    def weighed_again(self) -> bool:
        """Whether the window runs for what it was seen to count."""
        return bool(self._known)

    def rewind(self) -> None:
        """The window begins again."""
        self.counts, self.divisors = map(dict, self._inherited)

    def settle(self) -> None:
        """The window is over."""
        self._known, self._inherited = {}, ({}, {})
        self.rewind()

    def state(self) -> dict[str, Any]:
        """As something that `torch.save` takes."""
        return {"counts": dict(self.counts), "divisors": dict(self.divisors)}

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Go on with the books of another process."""
        self._known, self._inherited = {}, (dict(state["counts"]), dict(state["divisors"]))
        self.rewind()
