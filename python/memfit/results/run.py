"""The report of `memfit run`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .._api.report import RunQuestions

if TYPE_CHECKING:
    from .explain import CodeLine, Fix

Verdict = Literal["fits", "oom", "unknown", "error"]
CardKind = Literal["virtual", "real"]


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The three peaks in bytes."""

    allocated: int
    """Tensors: bytes in used blocks of the allocator."""
    reserved: int
    """Segments that the allocator holds."""
    device: int
    """Memory used on the device: reserved memory plus the typical size of memory outside the allocator."""
    device_upper: int
    """The same with memory outside the allocator at its upper bound; the verdict uses this."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport(RunQuestions):
    """The report of one run."""

    schema: str
    """The name and version of this schema."""
    verdict: Verdict
    """The answer."""
    device: DeviceInfo
    """The requested GPU."""
    peak: Peak
    """The peaks of the rank with the highest device peak."""
    peak_interval: PeakInterval | None = None
    """The peaks with sizes that depend on computed values at their lower and upper bounds, if both were run.
    """
    headroom: int
    """Capacity minus the upper bound of the device peak."""
    steps: int
    """Completed optimizer steps, or forward passes of a script without an optimizer."""
    coverage: Coverage
    """Parts of the training run that the completed steps included."""
    at_peak: AtPeak | None = None
    """Memory at the peak by category; absent if nothing was recorded."""
    outside: Outside
    """Typical size of the memory outside PyTorch's allocator at the device peak."""
    outside_parts: tuple[OutsidePart, ...] = ()
    """The parts of that memory, each with its interval and origin."""
    host: Host
    """The host's side."""
    oom: Oom | None = None
    """The out-of-memory error, if there was one."""
    cause: str | None = None
    """Cause of the out-of-memory error, as `memfit explain` reports it for the same recording; absent if
    memory did not run out, or nothing was recorded.
    """
    fixes: tuple[Fix, ...] = ()
    """Remedies, best first. `evidence` `run` means that another run confirmed it."""
    ranks: tuple[Rank, ...]
    """The same peaks for each rank."""
    gpus: tuple[GpuPeak, ...] = ()
    """Peaks of each GPU, with the memory of all processes; empty on a real GPU."""
    time: Time
    """Wall time of the run, and the estimated time of a step."""
    fidelity: Fidelity
    """Assumptions and gaps behind the figures."""
    torch: str | None = None
    """`torch.__version__`."""
    recording: str | None = None
    """The recording that was saved."""
    script: Script
    """Outcome of the script itself."""
    plan: str | None = None
    """The plan that was applied, with its levers."""
    problem: Problem | None = None
    """Reason for the verdict `error` or `unknown`."""


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """The requested GPU."""

    name: str
    """The name that the driver reports."""
    capacity: int
    """Total memory in bytes, as PyTorch sees it."""
    count: int
    """Number of GPUs."""
    kind: CardKind
    """Virtual or real."""


@dataclass(frozen=True, kw_only=True)
class PeakInterval:
    """The peaks at both bounds of sizes that depend on computed values."""

    lower: PeakEnd
    """With these sizes at their lower bounds."""
    upper: PeakEnd
    """With these sizes at their upper bounds."""


@dataclass(frozen=True, kw_only=True)
class PeakEnd(Peak):
    """One bound of the interval."""

    out_of_memory: bool
    """True if it ran out of memory."""
    completed: bool
    """True if it completed the same steps as the other bound, so that its peak is comparable."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Parts of the training run that the completed steps included."""

    steps: int
    """Completed steps."""
    forward_only: bool = False
    """True if no optimizer stepped; `steps` then counts forward passes of the outermost module."""
    evaluation: bool
    """True if an evaluation ran."""
    largest_batch: bool
    """True if a batch of the data set's largest items ran."""
    epoch_end: bool
    """True if an epoch ended."""
    has_loader: bool = False
    """True if the training takes its batches from a `torch.utils.data.DataLoader`."""
    growth_per_step: int | None = None
    """Growth of the allocated bytes per step after warm-up; absent if too few steps ran, or if their memory
    differs too much.
    """
    not_run: tuple[NotRun, ...] = ()
    """Statements that use the GPU and did not run before the run was ended."""


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A statement of the script that did not run."""

    place: str
    """File and line."""
    code: str
    """First line of its source."""


@dataclass(frozen=True, kw_only=True)
class AtPeak:
    """Memory by category at the first moment with the most allocated bytes."""

    step: int
    """The step in progress, counted from 1."""
    phase: str
    """The phase of the step."""
    allocated: int
    """Bytes in used blocks at that moment."""
    reserved: int
    """Bytes in segments then."""
    by_category: dict[str, int]
    """Parts of `reserved`, which they sum to."""
    modules: tuple[ModuleBytes, ...]
    """The modules with the most allocated bytes at that moment."""
    outside_modules: OutsideModules | None = None
    """Tensors that belong to no module; absent if there are none."""


@dataclass(frozen=True, kw_only=True)
class OutsideModules:
    """Memory of tensors that belong to no module, such as batches and results that the script keeps."""

    bytes: int
    """Requested bytes."""
    line: CodeLine | None = None
    """The line of the script that allocated most of it; absent if a module has more, or if stacks were not
    recorded.
    """


@dataclass(frozen=True, kw_only=True)
class ModuleBytes:
    """Memory of one module."""

    name: str
    """The name in `named_modules()`."""
    bytes: int
    """Live bytes that were requested for it."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Memory outside PyTorch's allocator, in bytes."""

    context: int
    """CUDA contexts of this run."""
    libraries: int
    """cuBLAS, cuDNN and similar libraries."""
    communication: int
    """NCCL's buffers."""
    other_processes: int
    """Programs unrelated to this run."""


@dataclass(frozen=True, kw_only=True)
class OutsidePart:
    """One part of the memory outside the allocator."""

    name: str
    """Name of the field in `Outside`."""
    low: int
    """No less than this."""
    typical: int
    """Typical size, which the field has."""
    high: int
    """Upper bound, which the verdict uses."""
    origin: str
    """Origin of the figure."""
    source: str
    """Source."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Host memory: peaks over the run, summed over its processes."""

    rss: int
    """Resident memory; shared pages count once."""
    pinned: int
    """Page-locked memory."""
    shared_memory: int
    """Growth of `/dev/shm`."""


@dataclass(frozen=True, kw_only=True)
class Oom:
    """An out-of-memory error."""

    caught: bool
    """True if the script caught it."""
    requested: int
    """Requested bytes, as in PyTorch's message: the size of the segment."""
    step: int
    """The step in progress, counted from 1."""
    phase: str
    """The phase of the step."""
    module: str | None = None
    """The innermost module."""
    evaluation: bool = False
    """True if it was in the forward pass of an evaluation."""
    stack: tuple[str, ...]
    """Python frames: the user's own, innermost first, then those of libraries, innermost first."""
    message: str | None = None
    """PyTorch's message, verbatim."""


@dataclass(frozen=True, kw_only=True)
class Rank(Peak):
    """One rank's peaks."""

    rank: int
    """Number of the rank."""
    card: int
    """The GPU that the rank used most."""


@dataclass(frozen=True, kw_only=True)
class GpuPeak:
    """Peaks of one GPU."""

    gpu: int
    """Its number."""
    device: int
    """Used memory with the typical size of what is outside PyTorch's allocator; 0 if the GPU was not used."""
    device_upper: int
    """The same with the upper bound of what is outside."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """Wall time of the run, and the estimated time of a step."""

    wall_s: float
    """Seconds of the first run. Runs with other assumed values and runs that try remedies are not included.
    """
    step_ms_estimate: float | None = None
    """Estimated milliseconds of a step on the GPU, or of a forward pass for inference; absent if there is no
    estimate.
    """
    step_ms_low: float | None = None
    """Lower bound of the estimate, within the accuracy of the model."""
    step_ms_high: float | None = None
    """Upper bound of the estimate, within the accuracy of the model."""
    busy_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds of GPU work in a step, by kind; concurrent work counts for each kind."""
    clock: str | None = None
    """Clock of the run: `estimate`, `instant` or `never`; absent on a real GPU."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Assumptions and gaps behind the figures."""

    unmodelled: tuple[CallCount, ...]
    """Refused calls that the virtual device does not model."""
    values: tuple[AssumedValue, ...]
    """Values that a kernel would have computed and the script read, by the assumed value."""
    notes: tuple[str, ...]
    """Further remarks."""
    effects: tuple[PossibleEffect, ...] = ()
    """Possible effect of each on the peaks, in this order: calls, values, notes."""


@dataclass(frozen=True, kw_only=True)
class PossibleEffect:
    """Possible effect of one uncertainty on the peaks."""

    id: str
    """Stable name: a remark from docs/remarks.md, or `unmodelled`, `value`, `number`, `condition`, `size`,
    `size-unbounded`.
    """
    what: str
    """The call, the value or the note."""
    bytes: int | None = None
    """Upper bound of the effect in bytes; absent if unbounded."""
    why: str
    """Explanation of that bound."""


@dataclass(frozen=True, kw_only=True)
class CallCount:
    """A name, and the number of its occurrences."""

    call: str
    """The name."""
    count: int
    """Number of occurrences."""


@dataclass(frozen=True, kw_only=True)
class AssumedValue:
    """A value that was assumed, and the lines of the script that read it."""

    call: str
    """Description."""
    count: int
    """Number of times it was read."""
    lines: tuple[str, ...] = ()
    """First lines of the script that read it, as `file:line in function`; empty if unknown."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """Outcome of the script itself."""

    command: tuple[str, ...]
    """The command as it was started."""
    interpreter: str | None = None
    """The interpreter that ran it."""
    exit_status: int | None = None
    """Exit status, if it ended by itself."""
    signal: str | None = None
    """The signal that ended it, unless memfit sent it."""
    exception: UncaughtException | None = None
    """The uncaught exception."""


@dataclass(frozen=True, kw_only=True)
class UncaughtException:
    """An uncaught exception."""

    type: str
    """Qualified name of the type."""
    message: str
    """`str(exception)`."""
    traceback: str
    """The traceback, as Python prints it."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Reason why there is no answer, and what to do."""

    kind: str
    """Stable name; docs/problems.md lists all."""
    message: str
    """Description."""
    hint: str | None = None
    """Advice."""
