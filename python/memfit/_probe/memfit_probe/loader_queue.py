"""Limits how many batches the workers of a script's `DataLoader` prepare at the same time.

A loader asks its workers for `num_workers` times `prefetch_factor` batches before it yields the first one. A
script for a host with many CPUs asks for hundreds, of which a dry run uses a few: here the first one would
take minutes. Batches are requested in the same order and from the same workers, only later. Where batches
arrive quickly, the queue grows to its full length. The host's memory in the report is that of this run.
"""

import os
import weakref

from . import imports
from .wrapping import alike

# Batches under way per CPU of this host. Workers also wait for disks.
PER_CPU = 2
# Wait for a batch, in nanoseconds, below which the loader may prepare one more at the same time.
SHORT_WAIT_NS = 200_000_000


class LoaderQueues:
    """The queues of the script's data loaders that have workers."""

    def __init__(self):
        self.forget()

    def forget(self):
        """Reset the state in a forked child."""
        self.limits = weakref.WeakKeyDictionary()

    def arm(self):
        imports.after("torch.utils.data.dataloader", self._arm)

    def _arm(self, module):
        iterator_class, queues = module._MultiProcessingDataLoaderIter, self
        # With an iterable data set, a worker that ends changes which worker gets the next request.
        self.kind = module._DatasetKind.Map
        original = iterator_class._try_put_index

        @alike(original)
        def _try_put_index(self):
            limit = queues.limit_of(self)
            if limit is None:
                original(self)
                return
            # Also batches that arrived before their turn: PyTorch asks for another one when their turn comes.
            while len(self._task_info) < limit:
                before = self._send_idx
                original(self)
                if self._send_idx == before:
                    break  # There are no more batches.

        iterator_class._try_put_index = _try_put_index

    def limit_of(self, iterator):
        """Return the number of batches that an iterator may have under way; None if it is the script's."""
        if iterator not in self.limits:
            limit = PER_CPU * len(os.sched_getaffinity(0))
            short = limit < longest(iterator) and iterator._dataset_kind == self.kind
            self.limits[iterator] = limit if short else None
        return self.limits[iterator]

    def arrived(self, iterator, waited):
        """Record how long the script waited for a batch, in nanoseconds."""
        if waited < SHORT_WAIT_NS and self.is_short(iterator):
            self.limits[iterator] += 1

    def is_short(self, iterator):
        """Return `True` if an iterator has fewer batches under way than the script asks for."""
        limit = self.limits.get(iterator)
        return limit is not None and limit < longest(iterator)


def longest(iterator):
    """Return the number of batches that an iterator has under way in the script."""
    return iterator._prefetch_factor * iterator._num_workers
