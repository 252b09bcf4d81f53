"""Settings out of their range are told by name, before anything is read."""

from __future__ import annotations

import operator
import re
from typing import Any

# What 32 and 64 bits hold without a sign.
LARGEST = (1 << 64) - 1
LARGEST_SIDE = (1 << 32) - 1
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def whole(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """A whole number of a setting, between two others."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is no whole number") from None
    if number < least:
        raise ValueError(f"{name}={number} has to be at least {least}")
    if number > most:
        raise ValueError(f"{name}={number} has to be at most {most}")
    return number


def bytes_of(size: int | str, name: str = "memory") -> int:
    """A number of bytes, as `2 GiB`, `512MiB` or a plain number."""
    if not isinstance(size, str):
        return whole(name, size, 0)
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:i?B)?\s*", size, re.IGNORECASE)
    if found is None:
        raise ValueError(f'{name}={size!r} is no size; write it as "2 GiB" or "512 MiB"')
    return int(float(found[1]) * _UNITS[found[2].upper()])


def wide_and_high(size: Any, name: str = "size", least: int = 1) -> tuple[int, int]:
    """Width and height, of what torch names as height and width."""
    if isinstance(size, (tuple, list)):
        if len(size) != 2:
            raise ValueError(f"{name}={size!r} is one number, or (height, width)")
        height, width = size
    else:
        height = width = size
    return whole(name, width, least, LARGEST_SIDE), whole(name, height, least, LARGEST_SIDE)
