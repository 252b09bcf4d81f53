"""The report of `memfit check`. Generated from the wire types by `scripts/docs/results.py`."""

from __future__ import annotations

from dataclasses import dataclass

from .._api.report import CheckQuestions


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport(CheckQuestions):
    """Findings, and files that could not be read."""

    schema: str
    """The name and version of this schema."""
    findings: tuple[CheckFinding, ...]
    """Findings."""
    problems: tuple[CheckProblem, ...]
    """Files that could not be read."""
    files: int
    """Number of files."""
    fixed: int
    """Number of fixed findings."""


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """A finding. Lines and columns count from 1, columns in characters; in a notebook they are relative to
    the cell.
    """

    rule: str
    """The rule's name."""
    severity: str
    """`error`, `warning` or `note`."""
    file: str
    """The path as given on the command line."""
    cell: int | None = None
    """The cell of a notebook, counted from 1."""
    line: int
    """Start line."""
    column: int
    """Start column."""
    end_line: int
    """End line."""
    end_column: int
    """End column."""
    message: str
    """The mistake and its consequence."""
    help: str | None = None
    """Advice."""
    labels: tuple[CheckLabel, ...]
    """Related places."""
    fix: CheckFix | None = None
    """The fix."""


@dataclass(frozen=True, kw_only=True)
class CheckLabel:
    """A related place of a finding."""

    line: int
    """Line."""
    column: int
    """Column."""
    message: str
    """Description."""


@dataclass(frozen=True, kw_only=True)
class CheckFix:
    """A fix."""

    safe: bool
    """True if the fix does not change what the program computes."""
    title: str
    """Summary."""
    edits: tuple[CheckEdit, ...]
    """The edits, which belong together. Positions refer to the file, also for notebooks."""


@dataclass(frozen=True, kw_only=True)
class CheckEdit:
    """A change of a file."""

    line: int
    """Start line."""
    column: int
    """Start column."""
    end_line: int
    """End line."""
    end_column: int
    """End column."""
    text: str
    """Replacement text."""


@dataclass(frozen=True, kw_only=True)
class CheckProblem:
    """A file, or a part of it, that could not be read."""

    file: str
    """The path."""
    line: int | None = None
    """Line, if the problem has a location."""
    column: int | None = None
    """Column, if the problem has a location."""
    message: str
    """Description."""
    fatal: bool
    """True if nothing in the file was checked."""
