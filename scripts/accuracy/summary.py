"""Statistics of figures: errors, intervals, under-estimates and false fits, each counted apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from figures import Figure


@dataclass(frozen=True)
class Summary:
    """Statistics of the figures of one kind."""

    figures: int
    answered: int
    median: float | None
    ninetieth: float | None
    worst: float | None
    # Within half a unit of the last digit that was published.
    rounded: int
    intervals: int
    inside: int
    # Of memory: less was found than was published, beyond its rounding; of a time, a shorter one.
    under: int


@dataclass(frozen=True)
class Verdicts:
    """Counts of published fits and failures, and of memfit's answers."""

    statements: int
    answered: int
    agree: int
    # Published to fail, answered to fit: the answer that costs a run.
    false_fits: int
    # Published to fit, answered to fail.
    false_failures: int


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that at least `share` of them do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summarise(figures: Sequence[Figure]) -> Summary:
    """Summarise figures that are quantities."""
    answered = [each for each in figures if each.found is not None and each.kind != "fits"]
    errors = [abs(each.error) for each in answered if each.error is not None]
    bounded = [each for each in answered if each.low is not None and each.high is not None]
    return Summary(
        figures=len(figures),
        answered=len(answered),
        median=statistics.median(errors) if errors else None,
        ninetieth=percentile(errors, 0.9) if errors else None,
        worst=max(errors) if errors else None,
        rounded=sum(abs((each.found or 0) - each.published) <= each.rounding for each in answered),
        intervals=len(bounded),
        inside=sum(
            (each.low or 0) - each.rounding <= each.published <= (each.high or 0) + each.rounding
            for each in bounded
        ),
        under=sum((each.found or 0) < each.published - each.rounding for each in answered),
    )


def verdicts(figures: Sequence[Figure]) -> Verdicts:
    """Summarise published fits and failures."""
    statements = [each for each in figures if each.kind == "fits"]
    known = [each for each in statements if each.found is not None]
    return Verdicts(
        statements=len(statements),
        answered=len(known),
        agree=sum(each.found == each.published for each in known),
        false_fits=sum(each.found == 1 and each.published == 0 for each in known),
        false_failures=sum(each.found == 0 and each.published == 1 for each in known),
    )
