"""Keyword arguments as options of the command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

Path = str | os.PathLike[str]
#: A size: bytes, or a text with its unit, such as `"12 GiB"`.
Size = int | str
#: A time: seconds, or a text such as `"20m"`.
Seconds = float | str
Command = Sequence[Path] | str


def words(command: Command) -> list[str]:
    """Return a command as a list of words; a text is split as a shell does."""
    found = shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]
    if not found:
        raise ValueError("the command is empty: pass one such as ['python', 'train.py']")
    return found


def size(value: Size | None) -> str | None:
    """Return a size with its unit."""
    return f"{value} B" if isinstance(value, int) else value


def seconds(value: Seconds | None) -> str | None:
    """Return a time with its unit; 0 means no limit."""
    if value is None or isinstance(value, str):
        return value
    return "0" if value == 0 else f"{max(round(value), 1)}s"


def percent(value: float | str | None) -> str | None:
    """Return a share such as 0.03 in percent."""
    return value if value is None or isinstance(value, str) else f"{value * 100:g}%"


def joined(values: Iterable[object] | object | None) -> str | None:
    """Return several values as one, separated by commas."""
    if values is None or isinstance(values, str):
        return values
    return ",".join(map(str, values)) if isinstance(values, Iterable) else str(values)


def options(**given: Any) -> list[str]:
    """Return options: True is a flag, a list is an option several times, None and False are left out."""
    arguments = []
    for name, value in given.items():
        option = f"--{name.rstrip('_').replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(option)
            continue
        several = value if isinstance(value, list | tuple) else [value]
        arguments += [
            f"{option}={os.fspath(each) if isinstance(each, os.PathLike) else each}" for each in several
        ]
    return arguments
