"""The interface of the virtual device in this process: reads its memory, and tells it sizes and types."""

import ctypes
import functools

# The type of a function that gets the id of an assumption.
ON_ASSUMED = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class Device:
    """Typed functions of the library."""

    def __init__(self, library):
        u64, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t

        def function(name, *arguments, result=None):
            found = getattr(library, "memfit_vgpu_" + name)
            found.argtypes, found.restype = arguments, result
            return found

        # Copies the contents of a range, if all of it follows from data that the script wrote.
        self.contents = function("contents", u64, u64, pointer, result=ctypes.c_int)
        # Records the contents of a range.
        self.computed = function("computed", u64, u64, pointer)
        # Sets the size that the current operator computes; -1 for none.
        self.expect = function("expect", ctypes.c_int64)
        # Names the range, and the bytes of an element, that the current operator searches for different ones.
        self.search = function("search", u64, u64, size)
        # Counts an assumption by its id.
        self.assumed = function("assumed", ctypes.c_char_p)
        # Sets the function that gets the id of each assumption, in the thread that reads the value.
        self.on_assumed = function("on_assumed", ON_ASSUMED)
        # Sets the data type of later reads; returns the number of unknown integers read so far.
        self.reading = function("reading", ctypes.c_int, result=u64)
        # Returns the number of unknown floating-point values read so far.
        self.unknown_floats = function("unknown_floats", result=u64)
        # Returns the number of this thread's reads of `any` of unknown values so far.
        self.unknown_any = function("unknown_any", result=u64)
        # Returns the number of this thread's conditions on unknown values so far, ...
        self.conditions = function("conditions", result=u64)
        # ... and how many of them the device inverted.
        self.flips = function("flips", result=u64)
        # Repeats the beginning of a range on the host by mapping its pages again, if the range is large.
        self.repeat = function("repeat", size, size, size, result=ctypes.c_bool)
        # Returns the number of assumptions that answered this thread's reads so far.
        self.assumptions = function("assumptions", result=u64)


def extent(tensor):
    """Return the number of elements from a tensor's first to its last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


@functools.cache
def find():
    """Return the device, or None if it is not loaded."""
    try:
        # The calls are short: PyDLL keeps the GIL, which is cheaper.
        return Device(ctypes.PyDLL(None))
    except (AttributeError, OSError):
        return None
