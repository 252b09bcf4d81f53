"""The report of `memfit explain`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._api.report import ExplainQuestions

if TYPE_CHECKING:
    from .run import Peak, Verdict


@dataclass(frozen=True, kw_only=True, repr=False)
class ExplainReport(ExplainQuestions):
    """The cause of an out-of-memory error on one device, and remedies."""

    schema: str
    """The name and version of this schema."""
    file: str
    """The file."""
    device: int
    """The device."""
    cause: str
    """The cause; `none` if memory did not run out and does not grow."""
    evidence: tuple[Evidence, ...]
    """Evidence for the cause, strongest first."""
    peak: ExplainPeak
    """The explained moment: the out-of-memory error, otherwise the peak."""
    holders: tuple[Holder, ...]
    """Memory at that moment by category, module and line. The branches sum to `peak.reserved`."""
    fixes: tuple[Fix, ...]
    """Remedies, best first."""
    leaks: tuple[Leak, ...]
    """Memory that grows with each step."""
    fragmentation: Fragmentation
    """Reserved memory that could not be used."""
    considered: tuple[Considered, ...]
    """The causes that were considered."""
    unknown: tuple[str, ...]
    """Open questions, as sentences."""
    problems: tuple[str, ...]
    """Parts of the file that could not be read."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence for a cause."""

    text: str
    """A sentence."""
    bytes: int
    """Bytes concerned."""
    stack: tuple[CodeLine, ...]
    """The lines of the user's code concerned, innermost first."""


@dataclass(frozen=True, kw_only=True)
class CodeLine:
    """A line of the user's code."""

    file: str
    """The file path, as recorded."""
    line: int
    """The line, from 1."""
    function: str
    """The function."""
    text: str | None = None
    """The source line, if the file is available."""


@dataclass(frozen=True, kw_only=True)
class ExplainPeak:
    """The explained moment."""

    allocated: int
    """Bytes in blocks."""
    reserved: int
    """Bytes in segments."""
    requested: int | None = None
    """Size of the tensor whose request failed, in bytes; absent if memory did not run out. If only PyTorch's
    message is known: size of the segment.
    """
    segment: int | None = None
    """Size of the segment that the request needed, as in PyTorch's message; absent if only the message is
    known.
    """
    limit: int | None = None
    """Bytes available to the allocator."""
    missing: int | None = None
    """Bytes that were missing."""
    step: int
    """The step in progress, counted from 1; 0 if the file does not say."""
    phase: str | None = None
    """The phase in progress."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Node of the tree of memory holders."""

    name: str
    """The category, the module or the line."""
    bytes: int
    """Bytes."""
    blocks: int
    """Number of blocks."""
    children: tuple[Holder, ...]
    """Parts."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A remedy."""

    lever: str
    """The lever."""
    saves: int
    """Bytes that it would have saved."""
    label: str
    """Effect on the training results."""
    how: str
    """Instructions."""
    evidence: str
    """Evidence for the savings."""
    enough: bool | None = None
    """True if the failed request would have succeeded, after which the run may still fail; with `evidence`
    `run`, True if a whole run fits. Absent if unknown.
    """
    environment: Environment | None = None
    """Environment variable to set; an empty value unsets it."""
    edit: Edit | None = None
    """Edit of a source file."""
    card: int | None = None
    """A GPU on which the allocator can get this many bytes."""
    proof: FixProof | None = None
    """Result of a run with it, if there was one."""


@dataclass(frozen=True, kw_only=True)
class FixProof:
    """Result of a run with a remedy."""

    verdict: Verdict
    """Verdict."""
    steps: int
    """Completed steps."""
    peak: Peak
    """Peaks."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment variable."""

    name: str
    """Name."""
    value: str
    """Value."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Edit of a source file."""

    file: str
    """The file."""
    line: int
    """The first changed line."""
    diff: str
    """The edit as a unified diff for `patch`."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Memory that grows with each step."""

    line: CodeLine | None = None
    """The line that allocated it."""
    module: str | None = None
    """The module in whose call it was allocated."""
    category: str
    """Category."""
    per_step: int
    """Bytes left behind by each step."""
    bytes: int
    """Bytes at the explained moment."""
    steps: int
    """Number of steps concerned."""
    dies_at_step: int | None = None
    """The step in which memory runs out."""


@dataclass(frozen=True, kw_only=True)
class Fragmentation:
    """Reserved memory that could not be used."""

    unused: int
    """Reserved bytes that are in no used block."""
    share: float
    """Share of the reserved bytes."""
    largest_free: int | None = None
    """The largest free block."""
    free_blocks: int | None = None
    """Number of free blocks."""
    in_private_pools: int
    """Free bytes in private pools."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """A cause that was considered."""

    cause: str
    """The cause."""
    bytes: int
    """The bytes that it accounts for."""
    enough: bool
    """True if the request would have succeeded without them."""
