"""Warnings that point to the user's own line."""

from __future__ import annotations

import os
import sys
import warnings

# Files whose frames are skipped: memfit, torch, and Python modules that call one from the other.
_MEMFIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SKIPPED = tuple(
    f"{os.sep}{part}"
    for part in ("torch" + os.sep, "contextlib.py", "functools.py", "warnings.py", "importlib" + os.sep)
)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the location of the nearest line of user code."""
    level, frame = 1, sys._getframe()
    while frame is not None and _is_skipped(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(f"memfit: {text}", category, stacklevel=level if frame is not None else 2)


class Once:
    """Gives each warning only once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, text: str, category: type[Warning] = UserWarning) -> tuple[str, ...]:
        """Warn unless this text was used before. Return the text in a tuple, for `result.changed`."""
        if text not in self._given:
            self._given.add(text)
            warn(text, category)
        return (text,)


def _is_skipped(file: str) -> bool:
    return file.startswith((_MEMFIT, "<frozen")) or any(part in file for part in _SKIPPED)
