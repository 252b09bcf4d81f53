"""The report of `memfit explain`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._api.report import ExplainQuestions

if TYPE_CHECKING:
    from .run import Peak, Verdict


@dataclass(frozen=True, kw_only=True, repr=False)
class ExplainReport(ExplainQuestions):
    """Why memory ran out on one device, and what would have helped."""

    schema: str
    """The name and version of this schema."""
    file: str
    """The file."""
    device: int
    """The device."""
    cause: str
    """The cause; `none` where memory did not run out and nothing says that it will."""
    evidence: tuple[Evidence, ...]
    """Evidence for the cause, the strongest first."""
    peak: ExplainPeak
    """The moment that is explained: where memory ran out, else where it was fullest."""
    holders: tuple[Holder, ...]
    """Holders of the memory then: category, module, line. The branches add up to `peak.reserved`."""
    fixes: tuple[Fix, ...]
    """Remedies, the best first."""
    leaks: tuple[Leak, ...]
    """Memory that grows with each step."""
    fragmentation: Fragmentation
    """Reserved memory that could not be used."""
    considered: tuple[Considered, ...]
    """The causes that were weighed."""
    unknown: tuple[str, ...]
    """Open questions, as sentences."""
    problems: tuple[str, ...]
    """Parts of the file that could not be read."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Something that speaks for a cause."""

    text: str
    """A sentence."""
    bytes: int
    """Bytes that it is about."""
    stack: tuple[CodeLine, ...]
    """The lines of the user's code that it is about, innermost first."""


@dataclass(frozen=True, kw_only=True)
class CodeLine:
    """A line of the user's code."""

    file: str
    """The file, as it was recorded."""
    line: int
    """The line, from 1."""
    function: str
    """The function."""
    text: str | None = None
    """The source line, where the file is available."""


@dataclass(frozen=True, kw_only=True)
class ExplainPeak:
    """The moment that is explained."""

    allocated: int
    """Bytes in blocks."""
    reserved: int
    """Bytes in segments."""
    requested: int | None = None
    """Bytes of the failed request; absent where memory did not run out."""
    limit: int | None = None
    """Bytes available to the allocator."""
    missing: int | None = None
    """Bytes that were missing."""
    step: int
    """The step that was under way, from 1."""
    phase: str | None = None
    """The phase that was under way."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A branch of who held the memory."""

    name: str
    """The category, the module or the line."""
    bytes: int
    """Its bytes."""
    blocks: int
    """Number of blocks."""
    children: tuple[Holder, ...]
    """Its parts."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A remedy."""

    lever: str
    """The lever."""
    saves: int
    """The bytes that it would have saved."""
    label: str
    """Equivalence with the original training."""
    how: str
    """Instructions."""
    evidence: str
    """Evidence for the savings."""
    fits: bool | None = None
    """True if the run would have continued; absent where that is unknown."""
    environment: Environment | None = None
    """Environment variables to set; an empty value takes one away."""
    edit: Edit | None = None
    """A change of a source file."""
    card: int | None = None
    """A GPU on which the allocator can get so much."""
    proof: FixProof | None = None
    """Result of a run with it, where there was one."""


@dataclass(frozen=True, kw_only=True)
class FixProof:
    """Result of a run with a remedy."""

    verdict: Verdict
    """Its verdict."""
    steps: int
    """Completed steps."""
    peak: Peak
    """Its peaks."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment variable."""

    name: str
    """Its name."""
    value: str
    """Its value."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of a source file."""

    file: str
    """The file."""
    line: int
    """The first line that changes."""
    diff: str
    """The change, as `patch` takes it."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Memory that grows with each step."""

    line: CodeLine | None = None
    """The line that asked for it."""
    module: str | None = None
    """The module that it was made in."""
    category: str
    """Its category."""
    per_step: int
    """Bytes that stay of each step."""
    bytes: int
    """Bytes that were there."""
    steps: int
    """Of how many steps."""
    dies_at_step: int | None = None
    """The step in which memory runs out."""


@dataclass(frozen=True, kw_only=True)
class Fragmentation:
    """Reserved memory that could not be used."""

    unused: int
    """Reserved, and in no block in use."""
    share: float
    """The share of what was reserved."""
    largest_free: int | None = None
    """The largest free block."""
    free_blocks: int | None = None
    """Number of free blocks."""
    in_private_pools: int
    """Free, and in pools of their own."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """A cause that was weighed."""

    cause: str
    """The cause."""
    bytes: int
    """The bytes that it accounts for."""
    enough: bool
    """True if memory would have sufficed without them."""
