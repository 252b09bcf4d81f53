"""Counts and divisors of several losses in a window.

Each loss has its own mean over the window, but the window has one gradient and one final correction factor.
As long as the counts stay in proportion, that factor corrects all losses. If they do not, the divisors are
unknown until the window has run: it is then run again with the counts of the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

# The counts of the losses, and their divisors, on one rank.
LossCounts = tuple[dict[str, float], dict[str, float]]

# Relative difference below which ratios are equal up to rounding.
_RELATIVE_TOLERANCE = 1e-9


class Losses:
    """The counts and divisors of the open window."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.divisors: dict[str, float] = {}
        # The counts of a window that runs again, from its first run.
        self._known: dict[str, float] = {}
        # The counts and divisors from another process that ran the start of this window.
        self._inherited: LossCounts = ({}, {})

    def divide(self, counts: Mapping[str, float], first: float) -> None:
        """Set the divisors of losses that are counted for the first time; `first` is that of the very first
        loss.
        """
        for name, count in counts.items():
            if count and name not in self.divisors:
                self.divisors[name] = self._known.get(name) or self._in_proportion(count, counts, first)

    def _in_proportion(self, count: float, counts: Mapping[str, float], first: float) -> float:
        for other, divisor in self.divisors.items():
            if counts.get(other):
                return divisor * count / counts[other]
        return first

    def count(self, counts: Mapping[str, float]) -> None:
        """Add the counts of a micro-batch."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0.0) + count

    def weigh(self, ranks: Sequence[LossCounts], together: bool) -> tuple[float, dict[str, float], bool]:
        """Return the correction factor of this rank's gradient, the counts over all ranks, and `True` if the
        factor corrects every loss. `together` means that gradients have been summed over ranks already.
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
        fits = all(max(group) - min(group) <= _RELATIVE_TOLERANCE * max(group) for group in groups if group)
        mine = [self.divisors[name] / total[name] for name, count in self.counts.items() if count]
        anyone = mine or (groups[0] if together else [])
        return (anyone[0] if anyone else 1.0), total, fits

    def run_again(self, total: dict[str, float]) -> None:
        """Prepare to run the window again with these counts."""
        self._known = total
        self.rewind()

    @property
    def weighed_again(self) -> bool:
        """`True` if the window runs for the second time, with known counts."""
        return bool(self._known)

    def rewind(self) -> None:
        """Start the window again."""
        self.counts, self.divisors = map(dict, self._inherited)

    def settle(self) -> None:
        """End the window."""
        if self.counts or self.divisors or self._known or self._inherited[0]:
            self._known, self._inherited = {}, ({}, {})
            self.rewind()

    def state(self) -> dict[str, Any]:
        """Return the state in a form that `torch.save` accepts."""
        return {"counts": dict(self.counts), "divisors": dict(self.divisors)}

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Continue with the state of another process."""
        self._known, self._inherited = {}, (dict(state["counts"]), dict(state["divisors"]))
        self.rewind()
