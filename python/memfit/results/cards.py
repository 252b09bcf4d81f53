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
    """One row for each GPU, count and batch: those that fit first, each group in the order of `sort`."""
    sort: CardSort
    """The order of the rows."""
    priced: PricedWork | None = None
    """The work that `price` pays for; None without prices."""
    runs: int
    """Runs of the script."""
    first_run_s: float | None = None
    """Seconds that the first run took, with the script's imports."""
    wall_s: float
    """Seconds from the start to the answer."""
    steps: int
    """Optimizer steps that ran; of a script without an optimizer, forward passes."""
    torch: str | None = None
    """`torch.__version__`."""
    command: tuple[str, ...]
    """The command."""
    notes: tuple[str, ...]
    """Remarks."""
    problem: Problem | None = None
    """Why there is no answer."""


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
    """How many of them train together."""
    batch: int | None = None
    """Samples in a batch of one process; None where neither the script's data nor its arguments tell."""
    verdict: CardVerdict
    """The answer."""
    peak: Peak | None = None
    """The peaks of the fullest GPU. Where the script does not fit, those of a GPU with unlimited memory."""
    headroom: int | None = None
    """Bytes that the peak leaves free, at its upper bound; negative where they are missing."""
    chosen: PlanRun | None = None
    """The plan with which it fits."""
    step_ms_estimate: float | None = None
    """Milliseconds that an optimizer step takes, as an estimate."""
    step_ms_low: float | None = None
    """No less than this, as far as the model goes."""
    step_ms_high: float | None = None
    """No more than this."""
    samples_per_s: float | None = None
    """Samples a second of all GPUs together."""
    price: CardPrice | None = None
    """The cheapest offer for this many of these GPUs; None without an offer, or without a speed."""
    pareto: bool
    """True if no other row that fits is both cheaper (without prices: on less memory) and faster."""
    evidence: CardEvidence
    """How the verdict is known."""
    command: tuple[str, ...]
    """The command that tries this row by itself."""
    note: str | None = None
    """Assumptions of this row, or why it has no verdict."""


@dataclass(frozen=True, kw_only=True)
class PricedWork:
    """The work that a price pays for."""

    samples: int
    """Samples in all."""
    epochs: int | None = None
    """Epochs, where they were asked for."""
    currency: str
    """The currency of all prices."""


@dataclass(frozen=True, kw_only=True)
class CardPrice:
    """Price of training on one offer."""

    amount: float
    """For the priced work."""
    low: float
    """With the step at its shortest."""
    high: float
    """With the step at its longest."""
    per_hour: float
    """For an hour."""
    hours: float
    """Hours that the work takes."""
    vendor: str
    """Vendor, as the price file names it."""
    instance: str
    """Vendor's name for it, as in the price file."""
    cards: int
    """Cards that the offer has, all of which are paid for."""
