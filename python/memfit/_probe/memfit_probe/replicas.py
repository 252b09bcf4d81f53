"""The buckets of DistributedDataParallel: a second copy of the gradients, which C++ makes and nothing in
Python owns.

Which blocks they are is told by the allocator: those that are there after the reducer has made its buckets,
and were not before.
"""

import functools

from . import watch as codes


def arm(session):
    """Watches reducers make their buckets, on their construction and where they order them anew."""
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
            # Once, after the first backward pass; it is asked for before each forward pass.
            if self.ordered:
                return super()._rebuild_buckets()
            with New(session):
                self.ordered = super()._rebuild_buckets()
            return self.ordered

    Reducer.__name__ = Reducer.__qualname__ = original.__name__
    distributed.Reducer = Reducer


class New:
    """Notes the blocks that appear meanwhile as gradients."""

    def __init__(self, session):
        self.session = session

    def __enter__(self):
        self.before = self._blocks()

    def __exit__(self, *_):
        self.session.watch.note(sorted(self._blocks() - self.before), codes.GRADIENTS)

    def _blocks(self):
        """The addresses of all that is in use."""
        cuda = self.session.torch.cuda
        found = set()
        try:
            for segment in cuda.memory_snapshot() if cuda.is_initialized() else ():
                # Releases before 2.1 do not tell where a block is, only how large.
                address = segment["address"]
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        found.add(address)
                    address += block["size"]
        except Exception as error:
            self.session.remark("probe-label", error, what="note the buckets of gradients")
        return found
