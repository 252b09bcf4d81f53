"""The variables of a running function, looked at without keeping what is in them.

Before Python 3.13, `frame.f_locals` leaves a copy of a function's variables on its frame. A tensor that the
function lets go of afterwards would live on in that copy, for as long as the function runs. Knows nothing of
torch.
"""

import ctypes
import inspect
import sys
import types
from typing import Any

_COPIES = sys.version_info < (3, 13)


def variables(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame by name, as they are now."""
    table = frame.f_locals
    found = dict(table)
    if _is_a_copy(frame) and _references(table) <= _UNSHARED:
        table.clear()
    return found


def set_variable(frame: types.FrameType, name: str, value: Any) -> None:
    """Gives a variable of a frame another value."""
    table = frame.f_locals
    table[name] = value
    if _COPIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    if _is_a_copy(frame) and _references(table) <= _UNSHARED:
        table.clear()


def _is_a_copy(frame: types.FrameType) -> bool:
    """Whether `f_locals` of a frame is a copy. Of a module and of a class body it is not."""
    return _COPIES and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def _references(table: dict[str, Any]) -> int:
    return sys.getrefcount(table)


def _references_of_a_new_copy() -> int:
    # A frame that has itself among its variables would stay, and all that called it.
    table = sys._getframe(0).f_locals
    return _references(table)


# A function's own `locals()` gives the copy away: then it has more, and is somebody's.
_UNSHARED = _references_of_a_new_copy()
