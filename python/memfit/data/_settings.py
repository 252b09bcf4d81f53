"""Checks settings, and reports those out of range by name before anything is read."""

from __future__ import annotations

import operator
import re
from typing import Any

# The maximum of unsigned 64-bit and 32-bit integers.
MAX_INTEGER = (1 << 64) - 1
MAX_SIDE = (1 << 32) - 1
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def integer(name: str, value: Any, least: int, most: int = MAX_INTEGER) -> int:
    """Return a setting as an integer within limits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} has to be an integer") from None
    if number < least:
        raise ValueError(f"{name}={number} has to be at least {least}")
    if number > most:
        raise ValueError(f"{name}={number} has to be at most {most}")
    return number


def bytes_of(size: int | str, name: str = "memory") -> int:
    """Return a number of bytes from `2 GiB`, `512MiB` or a plain number."""
    if not isinstance(size, str):
        return integer(name, size, 0)
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:i?B)?\s*", size, re.IGNORECASE)
    if found is None:
        raise ValueError(f'{name}={size!r} is not a size; write it as "2 GiB" or "512 MiB"')
    return int(float(found[1]) * _UNITS[found[2].upper()])


def wide_and_high(size: Any, name: str = "size", least: int = 1) -> tuple[int, int]:
    """Return width and height from torch's order of height and width."""
    if isinstance(size, (tuple, list)):
        if len(size) != 2:
            raise ValueError(f"{name}={size!r} has to be a single number or (height, width)")
        height, width = size
    else:
        height = width = size
    return integer(name, width, least, MAX_SIDE), integer(name, height, least, MAX_SIDE)
