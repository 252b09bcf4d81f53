"""The virtual device in front of this process: what it knows of its memory, and what it is told."""

import ctypes
import functools


class Device:
    """Typed faces of the library's functions."""

    def __init__(self, library):
        u64, pointer = ctypes.c_uint64, ctypes.c_void_p

        def function(name, *arguments, result=None):
            found = getattr(library, "memfit_vgpu_" + name)
            found.argtypes, found.restype = arguments, result
            return found

        # Copies what a range holds, if all of it follows from what the script wrote.
        self.contents = function("contents", u64, u64, pointer, result=ctypes.c_int)
        # Records what a range holds.
        self.computed = function("computed", u64, u64, pointer)
        # Tells the size that the operator under way computes; -1 for none.
        self.expect = function("expect", ctypes.c_int64)
        # Counts an assumption, by its id.
        self.assumed = function("assumed", ctypes.c_char_p)
        # Tells the type of what is read from now on; gives the unknown integers read so far.
        self.reading = function("reading", ctypes.c_int, result=u64)
        # Gives the unknown floating-point numbers read so far.
        self.unknown_floats = function("unknown_floats", result=u64)


@functools.cache
def find():
    """The device, or None where it is not loaded."""
    try:
        # The calls are short: PyDLL keeps the interpreter's lock, which is cheaper.
        return Device(ctypes.PyDLL(None))
    except (AttributeError, OSError):
        return None
