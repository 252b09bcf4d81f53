"""The report of `memfit cards`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._api.report import CardsQuestions

if TYPE_CHECKING:
    from .plan import PlanRun
    from .run import Peak, Problem

CardVerdict = Literal["fits-as-is", "fits-with-plan", "does-not-fit", "unknown"]
CardEvidence = Literal["run", "replayed"]
CardSort = Literal["price", "time", "memory"]


@dataclass(frozen=True, kw_only=True, repr=False)
class CardsReport(CardsQuestions):
    """The report of a comparison of GPUs."""

    schema: str
    """The name and version of this schema."""
    rows: tuple[CardRow, ...]
    """One row for each GPU, count and batch size: rows that fit come first, and each group is in the order of
    `sort`.
    """
    sort: CardSort
    """The order of the rows."""
    priced: PricedWork | None = None
    """The work that `price` pays for; None without prices."""
    runs: int
    """Runs of the script."""
    first_run_s: float | None = None
    """Duration of the first run in seconds, including the script's imports."""
    wall_s: float
    """Seconds from the start to the answer."""
    steps: int
    """Optimizer steps that ran; for a script without an optimizer, forward passes."""
    torch: str | None = None
    """`torch.__version__`."""
    command: tuple[str, ...]
    """The command."""
    notes: tuple[str, ...]
    """Remarks."""
    problem: Problem | None = None
    """Reason why there is no answer."""


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """A number of GPUs of one kind."""

    gpu: str
    """The GPU's name in the catalogue."""
    name: str
    """The driver's name for it."""
    architecture: str
    """The generation's name."""
    capacity: int
    """Memory of one GPU in bytes."""
    count: int
    """Number of GPUs that train together."""
    batch: int | None = None
    """Samples in one process's batch; None if neither the script's data nor its arguments show it."""
    verdict: CardVerdict
    """The answer."""
    peak: Peak | None = None
    """Peaks of the GPU with the highest device peak. If the script does not fit, peaks with unlimited memory.
    """
    headroom: int | None = None
    """Bytes that stay free at the upper bound of the peak; negative if memory is missing."""
    chosen: PlanRun | None = None
    """The plan with which it fits."""
    step_ms_estimate: float | None = None
    """Estimated milliseconds of an optimizer step."""
    step_ms_low: float | None = None
    """Lower bound of the estimate, within the accuracy of the model."""
    step_ms_high: float | None = None
    """Upper bound of the estimate, within the accuracy of the model."""
    samples_per_s: float | None = None
    """Samples per second, over all GPUs."""
    price: CardPrice | None = None
    """The cheapest offer for this number of these GPUs; None without an offer or without a speed."""
    pareto: bool
    """True if no other row that fits is both cheaper (without prices: has less memory) and faster."""
    evidence: CardEvidence
    """Evidence for the verdict."""
    command: tuple[str, ...]
    """The command that runs this row alone."""
    note: str | None = None
    """Assumptions behind this row, or the reason why it has no verdict."""


@dataclass(frozen=True, kw_only=True)
class PricedWork:
    """The work that a price pays for."""

    samples: int
    """Samples in all."""
    epochs: int | None = None
    """Epochs, if requested."""
    currency: str
    """The currency of all prices."""


@dataclass(frozen=True, kw_only=True)
class CardPrice:
    """Price of training on one offer."""

    amount: float
    """Price of the work."""
    low: float
    """Price for the lower bound of the step time."""
    high: float
    """Price for the upper bound of the step time."""
    per_hour: float
    """Price per hour."""
    hours: float
    """Hours that the work takes."""
    vendor: str
    """Vendor, as named in the price file."""
    instance: str
    """Vendor's name for the instance, as in the price file."""
    cards: int
    """Number of GPUs in the offer, all of which are paid for."""
