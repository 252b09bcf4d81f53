"""The report of `memfit run`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .._api.report import RunQuestions

if TYPE_CHECKING:
    from .explain import Fix

Verdict = Literal["fits", "oom", "unknown", "error"]
CardKind = Literal["virtual", "real"]


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The three peaks, in bytes, never mixed up."""

    allocated: int
    """Tensors: bytes in the allocator's blocks in use."""
    reserved: int
    """Segments that the allocator holds."""
    device: int
    """Memory used on the device: reserved, plus a best guess of what is outside the allocator."""
    device_upper: int
    """The same with everything outside the allocator at its upper bound; the verdict is about this."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport(RunQuestions):
    """The report of one run."""

    schema: str
    """The name and version of this schema."""
    verdict: Verdict
    """The answer."""
    device: DeviceInfo
    """The GPU that the question was about."""
    peak: Peak
    """The peaks of the rank with the highest device peak."""
    peak_interval: PeakInterval | None = None
    """The peaks with sizes that only a real GPU computes at their lower and at their upper bound, where both
    were run.
    """
    headroom: int
    """Capacity less the upper bound of the device peak."""
    steps: int
    """Completed optimizer steps, or forward passes of a script without an optimizer."""
    coverage: Coverage
    """Parts of a training that the completed steps included."""
    at_peak: AtPeak | None = None
    """Memory at the peak by category; absent where nothing was recorded."""
    outside: Outside
    """Memory outside PyTorch's allocator at the device peak, as a best guess."""
    outside_parts: tuple[OutsidePart, ...] = ()
    """The same part by part: what each lies between, and who says so."""
    host: Host
    """The host's side."""
    oom: Oom | None = None
    """The out-of-memory error, where there was one."""
    cause: str | None = None
    """Why it ran out of memory, as `memfit explain` says of the same recording; absent where it did not, or
    nothing was recorded.
    """
    fixes: tuple[Fix, ...] = ()
    """Remedies, the best first. `evidence` of `run` means that another run confirmed it."""
    ranks: tuple[Rank, ...]
    """The same peaks for each rank."""
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
    problem: Problem | None = None
    """Why there is no answer, where the verdict is `error` or `unknown`."""


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """The GPU that the question was about."""

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
    """Between which peaks it lies, by the sizes that only a real GPU computes."""

    lower: PeakEnd
    """With these sizes at their lower bound."""
    upper: PeakEnd
    """With these sizes at their upper bound."""


@dataclass(frozen=True, kw_only=True)
class PeakEnd(Peak):
    """One end of the interval."""

    out_of_memory: bool
    """True if it ran out of memory."""
    completed: bool
    """True if it completed the same steps as the other end, so that its peak counts."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Parts of a training that the completed steps included."""

    steps: int
    """Completed steps."""
    forward_only: bool = False
    """True if no optimizer stepped, so that `steps` counts forward passes of the outermost module."""
    evaluation: bool
    """True if an evaluation ran."""
    largest_batch: bool
    """True if the largest batch of the data set ran."""
    epoch_end: bool
    """True if an epoch ended."""
    growth_per_step: int | None = None
    """By how much the allocated bytes grew from step to step once steady; absent where too few steps ran to
    tell.
    """


@dataclass(frozen=True, kw_only=True)
class AtPeak:
    """Memory by category at the first instant with the most allocated bytes."""

    step: int
    """The step it fell in, from 1."""
    phase: str
    """The phase of the step."""
    allocated: int
    """Bytes in blocks in use then."""
    reserved: int
    """Bytes in segments then."""
    by_category: dict[str, int]
    """Parts of `reserved`; they sum to it."""
    modules: tuple[ModuleBytes, ...]
    """The modules for which most was allocated then."""


@dataclass(frozen=True, kw_only=True)
class ModuleBytes:
    """Memory of one module."""

    name: str
    """The name in `named_modules()`."""
    bytes: int
    """Bytes asked for on its behalf and alive."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Memory outside PyTorch's allocator, in bytes."""

    context: int
    """CUDA contexts of this run."""
    libraries: int
    """cuBLAS, cuDNN and the like."""
    communication: int
    """NCCL's buffers."""
    other_processes: int
    """Programs that have nothing to do with this run."""


@dataclass(frozen=True, kw_only=True)
class OutsidePart:
    """One part of what lies outside the allocator."""

    name: str
    """The name of the field of `Outside`."""
    low: int
    """No less than this."""
    typical: int
    """The best guess, which the field holds."""
    high: int
    """No more than this: what the verdict is judged by."""
    origin: str
    """Origin of the figure."""
    source: str
    """Its source."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host's side: peaks over the run, of all its processes together."""

    rss: int
    """Resident memory; pages that processes share are counted once."""
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
    """Bytes asked for."""
    step: int
    """The step it struck in, from 1."""
    phase: str
    """The phase of the step."""
    module: str | None = None
    """The innermost module."""
    stack: tuple[str, ...]
    """Python frames, the user's own first."""
    message: str | None = None
    """PyTorch's message, word for word."""


@dataclass(frozen=True, kw_only=True)
class Rank(Peak):
    """One rank's peaks."""

    rank: int
    """Number of the rank."""
    card: int
    """The GPU that it used most."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """Wall time of the run, and the estimated time of a step."""

    wall_s: float
    """Seconds from the start of the script to the verdict."""
    step_ms_estimate: float | None = None
    """Milliseconds that a step would take on the GPU, or a pass of a script that only infers; absent where
    there is no estimate.
    """
    step_ms_low: float | None = None
    """It is no less than this, as far as the model goes."""
    step_ms_high: float | None = None
    """It is no more than this, as far as the model goes."""
    busy_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds of GPU work in a step by kind; concurrent work counts for each kind."""
    clock: str | None = None
    """Clock of the run: `estimate`, `instant` or `never`; absent on a real GPU."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Assumptions and gaps behind the figures."""

    unmodelled: tuple[CallCount, ...]
    """Calls that the virtual device does not model, and refused."""
    values: tuple[AssumedValue, ...]
    """Values that a kernel would have computed and the script read back, by what was answered."""
    notes: tuple[str, ...]
    """Further remarks."""
    effects: tuple[PossibleEffect, ...] = ()
    """Possible effect of each on the peaks, in this order: calls, values, notes."""


@dataclass(frozen=True, kw_only=True)
class PossibleEffect:
    """Possible effect of one uncertainty on the peaks."""

    id: str
    """A stable name: of a remark, as docs/remarks.md lists them, or `unmodelled`, `value`, `size`, `size-
    unbounded`.
    """
    what: str
    """The call, the value or the note."""
    bytes: int | None = None
    """By so many bytes at the most; absent where nothing bounds it."""
    why: str
    """Why so many."""


@dataclass(frozen=True, kw_only=True)
class CallCount:
    """A name and how often it occurred."""

    call: str
    """The name."""
    count: int
    """Number of occurrences."""


@dataclass(frozen=True, kw_only=True)
class AssumedValue:
    """A value that was assumed, and the lines of the script that read it."""

    call: str
    """Its description."""
    count: int
    """Number of times it was read."""
    lines: tuple[str, ...] = ()
    """First lines of the script that read it, as `file:line in function`; empty where they are unknown."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """Outcome of the script itself."""

    command: tuple[str, ...]
    """The command as it was started."""
    interpreter: str | None = None
    """The interpreter that ran it."""
    exit_status: int | None = None
    """Its exit status, if it came to an end by itself."""
    signal: str | None = None
    """The signal that ended it, if one did that memfit did not send."""
    exception: UncaughtException | None = None
    """The exception that nothing caught."""


@dataclass(frozen=True, kw_only=True)
class UncaughtException:
    """An exception that nothing caught."""

    type: str
    """Qualified name of the type."""
    message: str
    """`str(exception)`."""
    traceback: str
    """The traceback as Python prints it."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why there is no answer, and what to do then."""

    kind: str
    """A stable name: `exception`, `exception-after-change` (memfit may have caused it), `exit`, `signal`,
    `timeout`, `interrupted`, `no-gpu-use`, `size-read-back`, `unmodelled-call`, `single-step`, `no-step`,
    `no-kernels-for-card`, `extension-not-built`, `no-network`, `module-missing`, `no-terminal`.
    """
    message: str
    """Description."""
    hint: str | None = None
    """Advice."""
