"""Exceptions of memfit. This module does not import torch."""

from __future__ import annotations

# Defined as in `typing`, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._api.report import Report


def chained(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors in its `__cause__` and `__context__` chain."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class MemfitError(RuntimeError):
    """Base class of memfit's errors."""


class CommandError(MemfitError):
    """A question that memfit could not answer: wrong usage, an unknown GPU, an unreadable file."""

    def __init__(self, message: str, *, hint: str | None = None, report: Report | None = None) -> None:
        super().__init__(message, hint, report)
        self.message = message
        """Description of the error."""
        self.hint = hint
        """Advice, if there is any."""
        self.report = report
        """The report, if there is one."""

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ScriptError(CommandError):
    """The script, the function or the cell failed. `report.script` has its exit status and traceback."""

    def __init__(
        self, message: str, *, hint: str | None = None, report: Report | None = None, output: str = ""
    ) -> None:
        super().__init__(message, hint=hint, report=report)
        self.output = output
        """Last output of the script."""

    def __str__(self) -> str:
        script = getattr(self.report, "script", None)
        exception = script.exception if script is not None else None
        details = exception.traceback if exception is not None else self.output
        return "\n\n".join(part for part in (super().__str__(), details.rstrip()) if part)
