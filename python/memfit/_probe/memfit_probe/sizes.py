"""Reads the requested size of each block, which the allocator's own events do not contain.

PyTorch's memory history, without stacks, costs little and has it. It is read only when a step sets a new
peak, and discarded otherwise, so that a long run neither grows nor slows down. For a recording it is kept
with stacks and read after each step, for the origin of each block and the changes of segments.
"""

import contextlib
import sys
import types

from . import traces

# Maximum number of events between two reads; only a single enormous step has more.
MAX_ENTRIES = 1_000_000
# Number of out-of-memory errors at which the history is read; scripts that try smaller and smaller batches
# cause many.
MAX_READINGS_AT_OOM = 4


class Sizes:
    """PyTorch's memory history of this process."""

    def __init__(self, session):
        self.session = session
        self.memory = None
        self.record = None
        self.running = False
        self.theirs = False
        self.readings_at_oom = 0
        self.best = {}
        self.traces = traces.Traces(session) if session.setup["stacks"] else None

    def forget(self):
        """Reset the state in a forked child, whose log does not have the parent's numbers."""
        if self.traces is not None:
            self.traces.forget()

    def arm(self):
        cuda = self.session.torch.cuda
        self.memory = cuda.memory
        self.record = cuda.memory._record_memory_history

        def by_the_script(*args, **kwargs):
            # The script records a history of its own, perhaps before CUDA is initialised, which must not be
            # read or cleared here.
            self.running = False
            self.theirs = True
            return self.record(*args, **kwargs)

        for name in ("__wrapped__", "__signature__", "__doc__", "__name__"):
            if hasattr(self.record, name):
                setattr(by_the_script, name, getattr(self.record, name))
        cuda.memory._record_memory_history = by_the_script
        cuda._lazy_call(self._start)

    def _start(self):
        if self.theirs:
            return
        try:
            self._restart()
            self.running = True
        except Exception as error:
            self.session.remark("no-sizes", error)

    def _restart(self):
        """Restart the history."""
        self.record(None)
        context = "alloc" if self.traces is not None else None
        self.record("all", context=context, stacks="python", max_entries=MAX_ENTRIES)

    def step_is_over(self, peaks):
        """Read the history if a device has a new peak after a step, else discard it."""
        if not self.running:
            return
        new = [device for device, peak in peaks.items() if peak > self.best.get(device, 0)]
        if new or self.traces is not None:
            self.best.update((device, peaks[device]) for device in new)
            self.read()
        else:
            self._restart()

    def out_of_memory(self):
        self.readings_at_oom += 1
        if self.readings_at_oom <= MAX_READINGS_AT_OOM:
            self.read()

    def read(self):
        """Report the sizes of blocks allocated since the last read, and of live blocks."""
        if not self.running:
            return
        watch = self.session.watch
        with _without_generated_code(self.session.torch):
            snapshot = self.memory._snapshot()
        for device, trace in enumerate(snapshot["device_traces"]):
            handed_out = [entry for entry in trace if entry["action"] == "alloc"]
            first = watch.stats(device).allocs - len(handed_out) + 1
            if handed_out and first > 0:
                addresses = [entry["addr"] for entry in handed_out]
                watch.requested(device, first, addresses, [entry["size"] for entry in handed_out])
            if self.traces is not None and first > 0:
                self.traces.send(device, first, trace)
        live = {}
        for segment in snapshot["segments"]:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"].startswith("active") and "requested_size" in block:
                    live.setdefault(segment["device"], []).append((address, block["requested_size"]))
                address += block["size"]
        for device, blocks in live.items():
            watch.requested(device, 0, [address for address, _ in blocks], [size for _, size in blocks])
        self._restart()


@contextlib.contextmanager
def _without_generated_code(torch):
    """Let PyTorch find no generated code behind frames, if there is none: to ask, it imports its compiler."""
    if "torch._inductor" in sys.modules:
        yield
        return
    cache = types.SimpleNamespace(stack_frames_for_code=lambda path, line: None)
    none = types.SimpleNamespace(codecache=types.SimpleNamespace(PyCodeCache=cache))
    torch._inductor = none
    try:
        yield
    finally:
        # Another thread may have imported it meanwhile.
        if torch.__dict__.get("_inductor") is none:
            del torch._inductor
