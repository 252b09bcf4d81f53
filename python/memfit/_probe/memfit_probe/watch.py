"""The watcher library in this process, which the runner preloads before PyTorch's libraries."""

import ctypes
from array import array

# The codes of `memfit-vocabulary`; a test compares them.
OTHER, FORWARD, BACKWARD, OPTIMIZER = range(4)
PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, BUFFERS, WORKSPACE = range(1, 8)

PHASES = {OTHER: "other", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}

# Kinds of work in a mark of the clock, and the most numbers that a mark has.
WORK_KINDS = 7
CLOCK_NUMBERS = 256


class Stats(ctypes.Structure):
    """The state of a device's allocator."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("allocated", "reserved", "peak_allocated", "peak_reserved", "allocs", "frees", "ooms")
    ]


class Segment(ctypes.Structure):
    """A change of a segment."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("address", "bytes", "stream", "time_us")),
        ("stack", ctypes.c_uint32),
        ("change", ctypes.c_uint8),
    ]


# Changes of segments by PyTorch's names, with the channel's codes. The flag marks a failed request in an
# allocation number, which the next successful one has as well.
REFUSED = 1 << 63

SEGMENT_CHANGES = {"segment_alloc": 0, "segment_free": 1, "segment_map": 2, "segment_unmap": 3}


def find():
    """Return the library's functions, or None if it is not loaded or this process belongs to no run."""
    try:
        # Loaded with the process, so its symbols are global; PyDLL keeps the GIL, which is cheaper here.
        library = ctypes.PyDLL(None)
        library.memfit_watch_active.restype = ctypes.c_int
        return Watch(library) if library.memfit_watch_active() else None
    except (AttributeError, OSError):
        return None


class Watch:
    """Typed functions of the library."""

    def __init__(self, library):
        u8, u32, u64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64
        pointer, size = ctypes.c_void_p, ctypes.c_size_t

        def function(name, *arguments, result=None):
            found = getattr(library, "memfit_watch_" + name)
            found.argtypes, found.restype = arguments, result
            return found

        self.phase = function("phase", u8, result=u8)
        self.step = function("step", u32)
        self.enter = function("scope_enter", u32, result=u32)
        self.exit = function("scope_exit", result=u32)
        self.node = function("module", u32)
        self.depth = function("depth", result=u32)
        self.current_phase = function("current_phase", result=u8)
        self.module = function("current_module", result=u32)
        self.reset_window = function("reset_window", u32)
        self._note_many = function("note_many", pointer, size, u8, pointer)
        self._requested = function("requested", u8, u64, pointer, pointer, size)
        self.frame = function("frame", u32, u32, u32, u32)
        self._stack = function("stack", u32, pointer, size)
        self._traced = function("traced", u8, u64, pointer, pointer, pointer, size)
        self._segment = function("segment", u8, u64, pointer)
        self._text = function("text", u32, ctypes.c_char_p, size)
        self._stats = function("stats", u32, pointer, result=ctypes.c_int)
        # Only a virtual device has a simulated clock.
        self._clock = getattr(library, "memfit_vgpu_clock", None)
        if self._clock is not None:
            self._clock.argtypes, self._clock.restype = (pointer, size), size

    def note(self, addresses, category, owners=None):
        """Assign the blocks at these addresses to a category; `owners` are the numbers of their names."""
        if not addresses:
            return
        addresses = array("Q", addresses)
        owners = array("I", owners) if owners is not None else None
        start = owners.buffer_info()[0] if owners is not None else None
        self._note_many(addresses.buffer_info()[0], len(addresses), category, start)

    def requested(self, device, first, addresses, sizes):
        """Report requested sizes: of the device's allocations from number `first` on, or of live blocks if it
        is 0.
        """
        addresses, sizes = array("Q", addresses), array("q", sizes)
        self._requested(device, first, addresses.buffer_info()[0], sizes.buffer_info()[0], len(addresses))

    def stack(self, number, frames):
        frames = array("I", frames)
        self._stack(number, frames.buffer_info()[0], len(frames))

    def traced(self, device, first, stacks, streams, times):
        """Report the origin of the device's allocations from number `first` on."""
        columns = array("I", stacks), array("Q", streams), array("Q", times)
        self._traced(device, first, *(column.buffer_info()[0] for column in columns), len(stacks))

    def segment(self, device, number, segment):
        """Report a change of a segment after the device's allocation with this number."""
        self._segment(device, number, ctypes.byref(segment))

    def text(self, number, text):
        raw = text.encode("utf-8", "replace")[:4096]
        self._text(number, raw, len(raw))

    def clock(self):
        """Return the time when all queued work will be done, the amounts of each kind of work, and the times
        on the GPUs with auxiliary clocks, in nanoseconds; None without a clock.
        """
        numbers = array("Q", bytes(8 * CLOCK_NUMBERS))
        count = self._clock(numbers.buffer_info()[0], len(numbers)) if self._clock is not None else 0
        if not count:
            return None
        kinds = 1 + WORK_KINDS
        mark = {"end": numbers[0], "busy": list(numbers[1:kinds])}
        if count > kinds:
            mark["beside"] = list(numbers[kinds:count])
        return mark

    def stats(self, device):
        stats = Stats()
        self._stats(device, ctypes.byref(stats))
        return stats
