"""Reads the variables of a running function without keeping their values alive.

Before Python 3.13, `frame.f_locals` leaves a copy of a function's variables on its frame. A tensor that the
function releases afterwards would live on in that copy for as long as the function runs. This module does not
use torch.
"""

import ctypes
import inspect
import sys
import types
from typing import Any

_COPIES = sys.version_info < (3, 13)


def variables(frame: types.FrameType) -> dict[str, Any]:
    """Return the current variables of a frame by name."""
    table = frame.f_locals
    found = dict(table)
    if _is_a_copy(frame) and _references(table) <= _UNSHARED:
        table.clear()
    return found


def set_variable(frame: types.FrameType, name: str, value: Any) -> None:
    """Assign to a variable of a frame."""
    table = frame.f_locals
    table[name] = value
    if _COPIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    if _is_a_copy(frame) and _references(table) <= _UNSHARED:
        table.clear()


def _is_a_copy(frame: types.FrameType) -> bool:
    """Return `True` if `f_locals` of a frame is a copy. For modules and class bodies it is not."""
    return _COPIES and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def _references(table: dict[str, Any]) -> int:
    return sys.getrefcount(table)


def _references_of_a_new_copy() -> int:
    # A frame that references itself would stay alive, with all its callers.
    table = sys._getframe(0).f_locals
    return _references(table)


# More references mean that the copy is in use, by the function's own `locals()`, for example.
_UNSHARED = _references_of_a_new_copy()
