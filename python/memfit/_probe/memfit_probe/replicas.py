"""Finds the gradient buckets of DistributedDataParallel: a second copy of the gradients, created in C++ and
not referenced from Python.

They are the allocator's blocks that exist after the reducer creates its buckets, but not before.
"""

import functools

from . import watch as codes


def arm(session):
    """Watch reducers create their buckets, initially and when they rebuild them."""
    distributed = getattr(session.torch, "distributed", None)
    original = getattr(distributed, "Reducer", None)
    if original is None:
        return

    class Reducer(original):
        @functools.wraps(original.__init__)
        def __init__(self, *args, **kwargs):
            with New(session):
                super().__init__(*args, **kwargs)
            self.ordered = False

        @functools.wraps(original._rebuild_buckets)
        def _rebuild_buckets(self):
            # Rebuilt once, after the first backward pass; called before each forward pass.
            if self.ordered:
                return super()._rebuild_buckets()
            with New(session):
                self.ordered = super()._rebuild_buckets()
            return self.ordered

    Reducer.__name__ = Reducer.__qualname__ = original.__name__
    distributed.Reducer = Reducer


class New:
    """Notes the blocks that appear within as gradients."""

    def __init__(self, session):
        self.session = session

    def __enter__(self):
        self.before = self._blocks()

    def __exit__(self, *_):
        self.session.watch.note(sorted(self._blocks() - self.before), codes.GRADIENTS)

    def _blocks(self):
        """Return the addresses of all blocks in use."""
        cuda = self.session.torch.cuda
        found = set()
        try:
            for segment in cuda.memory_snapshot() if cuda.is_initialized() else ():
                # Versions before 2.1 only report a block's size, not its address.
                address = segment["address"]
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        found.add(address)
                    address += block["size"]
        except Exception as error:
            self.session.remark("probe-label", error, what="note the buckets of gradients")
        return found
