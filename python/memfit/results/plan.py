"""The report of `memfit plan`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .._api.report import PlanQuestions

if TYPE_CHECKING:
    from .explain import FixProof
    from .run import AtPeak, DeviceInfo, Peak, Problem

PlanVerdict = Literal["fits-as-is", "fits-with-plan", "does-not-fit"]


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanReport(PlanQuestions):
    """The report of a search."""

    schema: str
    """The name and version of this schema."""
    verdict: PlanVerdict | None = None
    """The answer; nothing where the question could not be answered."""
    device: DeviceInfo
    """The GPU that the question was about."""
    budget: int
    """Bytes of it that a plan may take."""
    margin: float
    """The share of it that stays free."""
    allow: str
    """The largest change to the training that was allowed."""
    baseline: PlanRun | None = None
    """The script as it is; where it does not fit, as it would be on a GPU with memory without end."""
    chosen: PlanRun | None = None
    """The fastest plan that fits."""
    limit: PlanLimit | None = None
    """Largest micro-batch of the plan."""
    pareto: tuple[PlanRun, ...]
    """Candidates that no other one beats in both memory and time, the fastest first."""
    rejected: tuple[RejectedLever, ...]
    """Levers that are not in the plan, and why."""
    advice: tuple[str, ...]
    """Further steps, or changes to allow."""
    smallest_card: SmallestCard | None = None
    """The smallest GPU of the catalogue on which the script was seen to fit as it is."""
    evaluations: int
    """Runs of the script."""
    wall_s: float
    """Seconds from the start to the answer."""
    interrupted: bool
    """True if it was interrupted."""
    fewest_gpus: int | None = None
    """The fewest of the GPUs on which the plan was seen to fit, if it is for several."""
    nodes: int
    """Machines with that many GPUs each."""
    links: tuple[str, ...] = ()
    """Links between the GPUs that the user named."""
    notes: tuple[str, ...]
    """Remarks."""
    torch: str | None = None
    """`torch.__version__`."""
    command: tuple[str, ...]
    """The command."""
    plan: str | None = None
    """The plan file that was written."""
    patch: PlanPatch | None = None
    """The plan as a change of the script, where that was asked for."""
    problem: Problem | None = None
    """Why there is no answer."""


@dataclass(frozen=True, kw_only=True)
class PlanPatch:
    """A plan as a change of a script's source."""

    file: str
    """The script, as the change names it."""
    diff: str
    """A unified diff, as `git apply` and `patch -p1` take it; empty where nothing could be written."""
    written: str | None = None
    """The file that it was written to."""
    levers: tuple[str, ...]
    """The levers that are in it."""
    left: tuple[RejectedLever, ...]
    """Levers that the change leaves out, with reasons."""
    remarks: tuple[str, ...]
    """Remarks for people who apply it."""
    proof: FixProof | None = None
    """Result of running the changed script with the memory that a plan may use."""
    numbers: PatchNumbers | None = None
    """Comparison of the changed script's gradients with the original's, on this machine's CPU."""


@dataclass(frozen=True, kw_only=True)
class PatchNumbers:
    """The script and the changed script, computed on this machine's processor with small batches."""

    equal: bool | None = None
    """True if all gradients are equal within rounding; absent if they could not be compared."""
    why: str | None = None
    """Why they could not be compared."""
    levers: tuple[str, ...]
    """Levers that were in the change; those of fewer bits are left out of it."""
    steps: int
    """Optimizer steps that were compared."""
    batch: int
    """Samples in a batch, at most."""
    part: int | None = None
    """Samples in a part of a batch, where it was divided."""
    difference: float | None = None
    """The largest relative difference of a gradient; nothing where one has no number in it."""
    parameter: str | None = None
    """The parameter that has it."""
    printed: tuple[str, str] | None = None
    """The first line that the changed script prints with other numbers, and the script's own."""


@dataclass(frozen=True, kw_only=True)
class PlanRun:
    """One plan that was run."""

    levers: tuple[PlanLever, ...]
    """The levers, that of the micro-batch among them."""
    micro_batch: int | None = None
    """Samples in one forward and backward, at most; nothing where no loader told."""
    micro_batches_per_step: int
    """Forwards and backwards in one optimizer step."""
    accumulate: int
    """The loader's batches in one optimizer step."""
    parallel: dict[str, Any] | None = None
    """Spread over several GPUs; absent for one."""
    parallel_label: str | None = None
    """The label of that spread for this training; absent for one GPU."""
    ranks: tuple[PlanRank, ...] = ()
    """Ranks that were run."""
    bound_by: str | None = None
    """Part that takes most of a step; absent where its time is not known."""
    peak: Peak
    """The peaks."""
    step_ms_estimate: float | None = None
    """Milliseconds that an optimizer step takes on the GPU, as an estimate."""
    step_ms_low: float | None = None
    """No less than this, as far as the model goes."""
    step_ms_high: float | None = None
    """No more than this."""
    fits: bool
    """True if a run on the GPU fitted."""
    refuted: bool = False
    """True if it was run on the GPU and did not fit."""
    at_peak: AtPeak | None = None
    """Memory at the peak by category."""


@dataclass(frozen=True, kw_only=True)
class PlanRank:
    """One rank of a plan for several GPUs, as it was run."""

    rank: int
    """Its number."""
    peak: Peak
    """Its peaks."""


@dataclass(frozen=True, kw_only=True)
class PlanLever:
    """One lever of a plan."""

    name: str
    """Name of the lever."""
    value: bool | int | str | tuple[str, ...]
    """Its setting."""
    label: str
    """Its label for this training."""
    unverified: str | None = None
    """Why the label is not known to be true, where it is the worst that may be."""


@dataclass(frozen=True, kw_only=True)
class PlanLimit:
    """Largest micro-batch of a plan."""

    largest: int
    """The most samples together that were seen to fit."""
    refuted: int | None = None
    """A size that was seen not to fit; absent if the whole batch fits."""


@dataclass(frozen=True, kw_only=True)
class RejectedLever:
    """A lever that is not in the plan."""

    lever: str
    """Its name."""
    why: str
    """Why."""


@dataclass(frozen=True, kw_only=True)
class SmallestCard:
    """A GPU on which the script fits as it is."""

    name: str
    """Its name."""
    capacity: int
    """Its memory in bytes."""
