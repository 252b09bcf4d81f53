"""Compares two models on the same data: quality with confidence intervals, speed and memory."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from memfit import _core

# One number for each sample of a batch, or one for the batch. Higher is better.
Metric = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    score: float
    """Mean of the metric."""
    low: float
    """Lower end of the score's confidence interval."""
    high: float
    """Upper end of the score's confidence interval."""
    milliseconds: float
    """Median time of the metric on a batch; the first batch is not counted."""
    weights: int
    """Bytes of parameters and buffers."""
    peak: int | None
    """Bytes of weights and of what the forward passes need on the GPU; `None` on other devices."""


@dataclass(frozen=True)
class Comparison:
    """The result of `memfit.shrink.compare`."""

    before: Side
    after: Side
    difference: float
    """Mean of the paired differences: positive where the second model scores higher."""
    low: float
    """Lower end of the difference's confidence interval."""
    high: float
    """Upper end of the difference's confidence interval."""
    confidence: float
    samples: int
    """Number of paired scores."""

    @property
    def verdict(self) -> str:
        """`better` or `worse` if the interval excludes zero, else `undecided`."""
        return "worse" if self.high < 0 else "better" if self.low > 0 else "undecided"

    def __str__(self) -> str:
        sign = f"{self.difference:+.4g} ({self.low:+.4g} to {self.high:+.4g})"
        lines = [
            f"{self.verdict}: {sign}, {self.confidence:.0%} interval of {self.samples} paired scores",
            f"{'':8}{'score':>10}{f'{self.confidence:.0%} interval':>22}{'ms per batch':>14}{'weights':>12}{'peak':>12}",
        ]
        for name, side in (("before", self.before), ("after", self.after)):
            interval = f"{side.low:.4g} to {side.high:.4g}"
            peak = _core.format_size(side.peak) if side.peak is not None else ""
            lines.append(
                f"{name:8}{side.score:>10.4g}{interval:>22}{side.milliseconds:>14.2f}"
                f"{_core.format_size(side.weights):>12}{peak:>12}".rstrip()
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from .comparison_page import element

        return element(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the comparison as a page that needs no network."""
        from .comparison_page import page

        Path(path).write_text(page(self), "utf-8")


def compare(
    before: nn.Module,
    after: nn.Module,
    data: Iterable[Any],
    metric: Metric,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare two models by a paired bootstrap.

    `metric(model, batch)` returns one score for each sample of the batch (or one for the batch); higher is
    better. Both models see each batch, in eval mode and without gradients, so `data` is iterated once.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` is {confidence}, but has to be between 0 and 1")
    if resamples < 1:
        raise ValueError(f"`resamples` is {resamples}, but has to be at least 1")
    runs = [_Runs(before), _Runs(after)]
    modes = [(module, module.training) for run in runs for module in run.model.modules()]
    try:
        for run in runs:
            run.model.eval()
        for batch in data:
            counts = {len(run.score(metric, batch)) for run in runs}
            if len(counts) > 1:
                raise ValueError(
                    f"the metric returned {' and '.join(map(str, sorted(counts)))} scores for one batch; "
                    "they are compared in pairs"
                )
    finally:
        for module, mode in modes:
            module.training = mode
    scores = torch.tensor([run.scores for run in runs], dtype=torch.float64)
    count = scores.shape[1]
    if count < 2:
        raise ValueError(f"a bootstrap needs at least two scores, got {count}")
    # Rows: the first model, the second, and the difference, each resampled with the same samples.
    rows = torch.cat([scores, (scores[1] - scores[0]).unsqueeze(0)])
    low, high = _bootstrap(rows, confidence, resamples, seed)
    means = rows.mean(1).tolist()
    sides = [run.side(means[place], low[place], high[place]) for place, run in enumerate(runs)]
    return Comparison(sides[0], sides[1], means[2], low[2], high[2], confidence, count)


class _Runs:
    """The passes of one model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.scores: list[float] = []
        self._times: list[float] = []
        self._needed = 0
        place = next((each.device for each in model.parameters()), torch.device("cpu"))
        self._cuda = place if place.type == "cuda" else None

    def score(self, metric: Metric, batch: Any) -> list[float]:
        """Compute the scores of a batch."""
        held = 0
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
            torch.cuda.reset_peak_memory_stats(self._cuda)
            held = torch.cuda.memory_allocated(self._cuda)
        start = time.perf_counter()
        with torch.inference_mode():
            value = metric(self.model, batch)
            values = torch.as_tensor(value).detach().reshape(-1).to("cpu", torch.float64).tolist()
        self._times.append(time.perf_counter() - start)
        if self._cuda is not None:
            self._needed = max(self._needed, torch.cuda.max_memory_allocated(self._cuda) - held)
        if not all(map(math.isfinite, values)):
            raise ValueError("the metric returned a score that is not finite")
        self.scores += values
        return values

    def side(self, score: float, low: float, high: float) -> Side:
        """Sum up."""
        own = weights(self.model)
        peak = own + self._needed if self._cuda is not None else None
        # The first batch includes compilation, autotuning and allocation.
        milliseconds = 1000 * median(self._times[1:] or self._times)
        return Side(score, low, high, milliseconds, own, peak)


def weights(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers, including quantized codes that stand in for
    weights.
    """
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers())}
    codes = (vars(module).get("_memfit_base") for module in model.modules())
    return sum(map(_nbytes, tensors.values())) + sum(base.coded.nbytes for base in codes if base is not None)


def _nbytes(tensor: torch.Tensor) -> int:
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    names, _ = tensor.__tensor_flatten__()
    parts = (getattr(tensor, name) for name in names)
    # Not all of them are tensors: a distributed one lists its mesh as well.
    return sum(_nbytes(part) for part in parts if isinstance(part, torch.Tensor))


def _bootstrap(
    rows: torch.Tensor, confidence: float, resamples: int, seed: int
) -> tuple[list[float], list[float]]:
    """Return percentile intervals of the rows' means."""
    generator = torch.Generator().manual_seed(seed)
    count = rows.shape[1]
    means = torch.stack(
        [rows[:, torch.randint(count, (count,), generator=generator)].mean(1) for _ in range(resamples)], 1
    )
    outside = (1 - confidence) / 2
    ends = torch.quantile(means, torch.tensor([outside, 1 - outside], dtype=torch.float64), dim=1)
    return ends[0].tolist(), ends[1].tolist()
