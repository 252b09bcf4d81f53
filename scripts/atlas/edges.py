"""The search for the largest batch of a model that fits on each GPU, from as few questions as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

#: Batches that are tried, up to 1536 samples.
SERIES = tuple(sorted({scale << power for scale in (2, 3) for power in range(10)} | {1}))
#: Batches of the first two measurements.
PROBES = (2, 8)
#: Rounds in which a wrong prediction is corrected; each asks about a batch that was not known before.
MAX_ROUNDS = 2 * len(SERIES)


@dataclass(frozen=True)
class Gpu:
    """A GPU of the catalogue."""

    id: str
    memory: int
    compute_capability: str


@dataclass(frozen=True)
class Answer:
    """A verdict of memfit's on one batch on one GPU."""

    gpu: str
    batch: int
    verdict: str
    evidence: str
    allocated: int | None
    reserved: int | None
    device_upper: int | None
    samples_per_s: float | None
    note: str | None

    @classmethod
    def from_row(cls, row: dict[str, Any], batch: int) -> Answer:
        """Read a row of `memfit cards`."""
        peak = row["peak"] or {}
        return cls(
            row["gpu"],
            batch,
            row["verdict"],
            row["evidence"],
            peak.get("allocated"),
            peak.get("reserved"),
            peak.get("device_upper"),
            row["samples_per_s"],
            row["note"],
        )


#: Asks memfit about batches on GPUs; the last argument demands runs.
Ask = Callable[[tuple[int, ...], tuple[str, ...], bool], list[Answer]]


class OutOfTimeError(Exception):
    """The budget is spent."""


class Known:
    """The verdicts on one model in one precision so far."""

    def __init__(self, answers: Iterable[Answer] = ()) -> None:
        self.by_gpu: dict[str, dict[int, Answer]] = defaultdict(dict)
        self.add(answers)

    def add(self, answers: Iterable[Answer]) -> None:
        """Add verdicts; a run takes the place of a replay."""
        for answer in answers:
            before = self.by_gpu[answer.gpu].get(answer.batch)
            if before is None or before.evidence != "run":
                self.by_gpu[answer.gpu][answer.batch] = answer

    def edge(self, gpu: str) -> tuple[Answer | None, Answer | None]:
        """Return the largest batch that fits, and the smallest larger one that does not."""
        answers = self.by_gpu[gpu]
        fitting = [batch for batch, each in answers.items() if each.verdict == "fits-as-is"]
        largest = max(fitting, default=0)
        failing = [
            batch for batch, each in answers.items() if each.verdict == "does-not-fit" and batch > largest
        ]
        return answers.get(largest), answers.get(min(failing, default=-1))

    def unknown(self, gpu: str) -> Answer | None:
        """Return a verdict that memfit could not give, if there is one."""
        return next((each for each in self.by_gpu[gpu].values() if each.verdict == "unknown"), None)

    def settled(self, gpu: str) -> bool:
        """Return true if the edge is between neighbours of the series, or memfit cannot tell."""
        if self.unknown(gpu):
            return True
        fits, fails = self.edge(gpu)
        if fits is None:
            return fails is not None and fails.batch == SERIES[0]
        if fits.batch == SERIES[-1]:
            return True
        return fails is not None and fails.batch == following(fits.batch)

    def line(self, gpu: str) -> tuple[float, float] | None:
        """Return intercept and slope of the peak, from the largest batches known on this GPU or any."""
        for answers in (self.by_gpu[gpu], *self.by_gpu.values()):
            peaks = sorted((batch, each.device_upper) for batch, each in answers.items() if each.device_upper)
            if len(peaks) >= 2:
                (low, at_low), (high, at_high) = peaks[-2:]
                slope = max((at_high - at_low) / (high - low), 1.0)
                return at_high - slope * high, slope
        return None

    def wanted(self, gpu: Gpu) -> tuple[int, ...]:
        """Return the batches to ask about next: the predicted edge, within what is known."""
        fits, fails = self.edge(gpu.id)
        low, high = fits.batch if fits else 0, fails.batch if fails else SERIES[-1] + 1
        open_ = [batch for batch in SERIES if low < batch < high]
        line = self.line(gpu.id)
        if line is None:
            return tuple(open_[:2])
        intercept, slope = line
        within = [batch for batch in open_ if intercept + slope * batch <= gpu.memory]
        start = max(len(within) - 1, 0)
        # The next batch as well, unless not even the smallest is expected to fit.
        return tuple(open_[start : start + 2] if within else open_[:1])


def following(batch: int) -> int | None:
    """Return the next batch of the series."""
    return next((each for each in SERIES if each > batch), None)


def search(gpus: list[Gpu], known: Known, ask: Ask, proven: frozenset[str] = frozenset()) -> None:
    """Ask until every GPU's edge is known, and then for runs of the edges of the proven GPUs."""
    largest = max(gpus, key=lambda gpu: gpu.memory)
    if not known.by_gpu[largest.id]:
        known.add(ask(PROBES, (largest.id,), False))
    for _ in range(MAX_ROUNDS):
        groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for gpu in gpus:
            if not known.settled(gpu.id) and (wanted := known.wanted(gpu)):
                groups[wanted].append(gpu.id)
        if not groups:
            break
        # The largest group first: a line that is wrong is corrected for the others meanwhile.
        batches, ids = max(groups.items(), key=lambda each: (len(each[1]), each[0]))
        known.add(ask(batches, tuple(ids), False))
    for gpu in gpus:
        if gpu.id in proven and known.settled(gpu.id) and not known.unknown(gpu.id):
            # A run may differ from the replay before it, which moves the edge.
            while replayed := [each.batch for each in known.edge(gpu.id) if each and each.evidence != "run"]:
                known.add(ask(tuple(replayed), (gpu.id,), True))
                search([gpu], known, lambda batches, ids, _: ask(batches, ids, True))
