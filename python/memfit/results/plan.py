"""The report of `memfit plan`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .._api.report import PlanQuestions

if TYPE_CHECKING:
    from .explain import FixProof
    from .run import AtPeak, Coverage, DeviceInfo, Peak, Problem

PlanVerdict = Literal["fits-as-is", "fits-with-plan", "does-not-fit"]


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanReport(PlanQuestions):
    """The report of a search."""

    schema: str
    """The name and version of this schema."""
    verdict: PlanVerdict | None = None
    """The verdict; absent if there is none."""
    device: DeviceInfo
    """The requested GPU."""
    budget: int
    """Bytes of its memory that a plan may use."""
    margin: float
    """Share of its memory that stays free."""
    allow: str
    """The largest change to the training that was allowed."""
    baseline: PlanRun | None = None
    """The unchanged script; if it does not fit, a run with unlimited memory."""
    chosen: PlanRun | None = None
    """The fastest plan that fits."""
    limit: PlanLimit | None = None
    """Largest micro-batch of the plan."""
    pareto: tuple[PlanRun, ...]
    """Pareto front of the candidates in memory and time, fastest first."""
    rejected: tuple[RejectedLever, ...]
    """Levers that are not in the plan, with reasons."""
    advice: tuple[str, ...]
    """Next steps, or changes to allow."""
    smallest_card: SmallestCard | None = None
    """The smallest GPU of the catalogue on which a run of the unchanged script fits."""
    coverage: Coverage | None = None
    """Parts of the training that a run of the unchanged script included; the plan's runs included no others.
    """
    evaluations: int
    """Runs of the script."""
    wall_s: float
    """Seconds from the start to the answer."""
    interrupted: bool
    """True if the search ended early: it was interrupted, or reached its limit of runs. Without a plan there
    is then no verdict.
    """
    fewest_gpus: int | None = None
    """The fewest GPUs on which a run of the plan fits, if it is for several."""
    nodes: int
    """Number of machines, each with that many GPUs."""
    links: tuple[str, ...] = ()
    """Links between the GPUs, as given by the user."""
    notes: tuple[str, ...]
    """Remarks."""
    torch: str | None = None
    """`torch.__version__`."""
    command: tuple[str, ...]
    """The command."""
    plan: str | None = None
    """The plan file that was written."""
    patch: PlanPatch | None = None
    """The plan as a patch of the script, if requested."""
    problem: Problem | None = None
    """Reason why there is no answer."""


@dataclass(frozen=True, kw_only=True)
class PlanPatch:
    """A plan as a patch of a script."""

    file: str
    """The script, as named in the patch."""
    diff: str
    """A unified diff for `git apply` and `patch -p1`; empty if there is no patch."""
    written: str | None = None
    """The file that it was written to."""
    levers: tuple[str, ...]
    """The levers in the patch."""
    left: tuple[RejectedLever, ...]
    """Levers that the patch leaves out, with reasons."""
    remarks: tuple[str, ...]
    """Remarks for users who apply the patch."""
    proof: FixProof | None = None
    """Result of running the changed script with the memory that a plan may use."""
    numbers: PatchNumbers | None = None
    """Comparison of the changed script's training with the original's, on this machine's CPU."""


@dataclass(frozen=True, kw_only=True)
class PatchNumbers:
    """Comparison of the original and the changed script on this machine's CPU, with small batches."""

    equal: bool | None = None
    """True if all gradients, updates, buffers and optimizer settings are equal within rounding; absent if
    they could not be compared.
    """
    why: str | None = None
    """Reason why they could not be compared."""
    levers: tuple[str, ...]
    """Levers in the compared script; levers that reduce precision are left out."""
    steps: int
    """Optimizer steps that were compared."""
    batch: int
    """Maximum samples in a batch."""
    part: int | None = None
    """Samples in a micro-batch, if the batch was split."""
    difference: float | None = None
    """Largest relative difference between gradients, or of `state`; absent if it is not finite."""
    parameter: str | None = None
    """The parameter whose gradient has the largest difference."""
    state: str | None = None
    """The buffer, other parameter or optimizer setting that differs although the gradients are equal."""
    printed: tuple[str, str] | None = None
    """The first line in which the changed script prints other numbers, and the original line."""


@dataclass(frozen=True, kw_only=True)
class PlanRun:
    """One plan that was run."""

    levers: tuple[PlanLever, ...]
    """The levers, including the micro-batch."""
    micro_batch: int | None = None
    """Maximum samples in one forward and backward pass; absent if no loader reports it."""
    micro_batches_per_step: int
    """Forward and backward passes in one optimizer step."""
    accumulate: int
    """The loader's batches in one optimizer step."""
    parallel: dict[str, Any] | None = None
    """How the training is spread over several GPUs; absent for one."""
    parallel_label: str | None = None
    """The label of that parallelism for this training; absent for one GPU."""
    library: str | None = None
    """Training library whose settings spread the training; absent where `memfit.Step` does."""
    ranks: tuple[PlanRank, ...] = ()
    """Ranks that were run."""
    gpus_used: int = 0
    """Number of GPUs that the run used; a plan for several GPUs is run as one rank at a time."""
    bound_by: str | None = None
    """The kind of work that takes most of a step; absent if its time is unknown."""
    peak: Peak
    """The peaks."""
    step_ms_estimate: float | None = None
    """Estimated milliseconds of an optimizer step on the GPU."""
    step_ms_low: float | None = None
    """Lower bound of the estimate, within the accuracy of the model."""
    step_ms_high: float | None = None
    """Upper bound of the estimate, within the accuracy of the model."""
    fits: bool
    """True if a run on the GPU fits."""
    refuted: bool = False
    """True if a run on the GPU does not fit."""
    at_peak: AtPeak | None = None
    """Memory at the peak by category."""


@dataclass(frozen=True, kw_only=True)
class PlanRank:
    """The run of one rank of a plan for several GPUs."""

    rank: int
    """Number."""
    peak: Peak
    """Peaks."""


@dataclass(frozen=True, kw_only=True)
class PlanLever:
    """One lever of a plan."""

    name: str
    """Name of the lever."""
    value: bool | int | str | tuple[str, ...]
    """Setting."""
    label: str
    """Label for this training."""
    unverified: str | None = None
    """Reason why the label could not be verified; it is then the worst possible one."""


@dataclass(frozen=True, kw_only=True)
class PlanLimit:
    """Largest micro-batch of a plan."""

    largest: int
    """The largest batch size that fits in a run."""
    refuted: int | None = None
    """A batch size that does not fit in a run; absent if the whole batch fits."""


@dataclass(frozen=True, kw_only=True)
class RejectedLever:
    """A lever that is not in the plan."""

    lever: str
    """Name."""
    why: str
    """Reason."""


@dataclass(frozen=True, kw_only=True)
class SmallestCard:
    """A GPU on which the unchanged script fits."""

    name: str
    """Name."""
    capacity: int
    """Memory in bytes."""
