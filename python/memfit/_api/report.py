"""Base class of all results, and the properties of each verb's result."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..results.cards import CardRow
    from ..results.check import CheckFinding


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """A result of a verb: the fields of its JSON, and the text that the command prints.

    `str(report)` is that text; a notebook shows the report as HTML.
    """

    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The JSON as it was read, with fields that this version of memfit does not know."""
    text: str = field(default="", repr=False, compare=False)
    """The report as the command prints it."""
    folder: str = field(default="", repr=False, compare=False)
    """The folder in which the command ran: relative paths start there."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a report from JSON, such as a file that `--json FILE` wrote."""
        from .decode import decode

        return decode(cls, json.loads(text))

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the JSON as the command wrote it."""
        return json.dumps(self.raw, indent=indent, ensure_ascii=False)

    def summary(self) -> str:
        """Return the answer in one line."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text.rstrip("\n") or self.summary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        from . import html

        return html.page(self)

    def _outline(self, path: str | None) -> dict[str, Any] | None:
        """Return memory over time from a recording, or None if it cannot be read."""
        from .. import _core

        if not path:
            return None
        path = os.path.join(self.folder, path)
        try:
            return _core.outline(path) if os.path.isfile(path) else None
        except (OSError, ValueError):
            return None


class RunQuestions(Report):
    """Properties of a run's result."""

    if TYPE_CHECKING:
        from ..results.run import Coverage, DeviceInfo, Oom, Peak, Verdict

        verdict: Verdict
        coverage: Coverage
        device: DeviceInfo
        peak: Peak
        oom: Oom | None
        steps: int
        recording: str | None

    @property
    def fits(self) -> bool | None:
        """True if it fits, False if memory runs out, None if unknown."""
        return {"fits": True, "oom": False}.get(self.verdict)

    def __bool__(self) -> bool:
        """Return True only if it fits: not if memory runs out, and not if the verdict is unknown."""
        return self.fits is True

    @functools.cached_property
    def timeline(self) -> dict[str, Any] | None:
        """Memory over the run's events, from the recording, or None without one."""
        return self._outline(self.recording)

    @property
    def ran(self) -> str:
        """The steps that the verdict covers, such as `3 steps` or `1 forward pass`."""
        word = "forward pass" if self.coverage.forward_only else "step"
        ending = "" if self.steps == 1 else "es" if self.coverage.forward_only else "s"
        return f"{self.steps} {word}{ending}"

    def summary(self) -> str:
        from .._core import format_size

        card = f"{self.device.name} ({format_size(self.device.capacity)})"
        if self.verdict == "oom" and self.oom is not None:
            return f"out of memory on {card}: {format_size(self.oom.requested)} were requested"
        if self.verdict == "fits":
            return f"fits on {card} for {self.ran}: at most {format_size(self.peak.device_upper)} used"
        return f"{self.verdict} on {card}"


class PlanQuestions(Report):
    """Properties of a plan's result."""

    if TYPE_CHECKING:
        from ..results.plan import PlanRun, PlanVerdict
        from ..results.run import DeviceInfo

        verdict: PlanVerdict | None
        chosen: PlanRun | None
        device: DeviceInfo

    @property
    def fits(self) -> bool | None:
        """True if it fits, with a plan or without; False if no plan fits; None without an answer."""
        return None if self.verdict is None else self.verdict != "does-not-fit"

    def __bool__(self) -> bool:
        """Return True only if it fits, with a plan or without."""
        return self.fits is True

    def summary(self) -> str:
        levers = self.chosen.levers if self.chosen is not None else ()
        names = ", ".join(str(lever.name) for lever in levers)
        return f"{self.verdict or 'no answer'} on {self.device.name}" + (f": {names}" if names else "")


class ExplainQuestions(Report):
    """Properties of an explanation."""

    if TYPE_CHECKING:
        from ..results.explain import ExplainPeak

        file: str
        cause: str
        peak: ExplainPeak

    @functools.cached_property
    def timeline(self) -> dict[str, Any] | None:
        """Memory over the recording's events, or None if the file has none."""
        return self._outline(self.file)

    def summary(self) -> str:
        from .._core import format_size

        return f"{self.cause}, at {format_size(self.peak.allocated)} allocated"


class CheckQuestions(Report):
    """Properties of a check's result."""

    if TYPE_CHECKING:
        findings: tuple[CheckFinding, ...]
        files: int

    @property
    def errors(self) -> tuple[CheckFinding, ...]:
        """The findings with severity `error`."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def summary(self) -> str:
        return f"findings: {len(self.findings)}, of which errors: {len(self.errors)}; files: {self.files}"


class CardsQuestions(Report):
    """Properties of a comparison of GPUs."""

    if TYPE_CHECKING:
        rows: tuple[CardRow, ...]

    @property
    def fitting(self) -> tuple[CardRow, ...]:
        """The rows that fit, with a plan or without, in the order of the report."""
        return tuple(row for row in self.rows if row.verdict in ("fits-as-is", "fits-with-plan"))

    @property
    def fits(self) -> bool | None:
        """True if any row fits, False if all are known not to, None otherwise."""
        if self.fitting:
            return True
        known = bool(self.rows) and all(row.verdict == "does-not-fit" for row in self.rows)
        return False if known else None

    def __bool__(self) -> bool:
        """Return True only if a row fits."""
        return self.fits is True

    def summary(self) -> str:
        return f"fits on {len(self.fitting)} of {len(self.rows)} configurations"
