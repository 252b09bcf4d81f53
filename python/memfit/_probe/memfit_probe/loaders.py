"""Tracks how much of the script's data the run covers: ends of epochs, evaluations, the largest batch.

With `--cover full` the run continues after the requested steps. The training loader yields one more batch,
made of the data set's largest items; then it ends early, as if the epoch were over, so that the script goes
on to its evaluation. When the next epoch begins after an evaluation, the run is complete. An epoch without
one is cut to a single batch, for a few epochs.
"""

import weakref

from . import feeding, flows, imports, loader_queue
from .largest import largest_batch
from .oom import frames_here
from .wrapping import alike

# Number of epochs that are cut short while waiting for an evaluation.
MAX_EPOCHS = 10
# Number of steps beyond the requested ones after which a script that ignores its loader's end is stopped.
MAX_STEPS_BEYOND = 64


class _Pass:
    """One iteration of a script over a loader."""

    def __init__(self, iterator, rounds):
        self.iterator = weakref.ref(iterator)
        self.key = id(iterator._index_sampler)
        self.rounds = rounds
        self.batches = 0


class Loaders:
    """The script's data loaders."""

    def __init__(self, session):
        self.session = session
        self.full = bool(session.setup["cover_full"])
        self.feeding = feeding.Feeding(session)
        self.queues = loader_queue.LoaderQueues()
        self.forget()

    def forget(self):
        """Reset the state in a forked child."""
        self.feeding.forget()
        self.queues.forget()
        self.passes = weakref.WeakKeyDictionary()
        # Places at which the script iterates over a loader.
        self.sites = set()
        self.largest_batch = False
        self.epoch_end = False
        # With full cover: set once the requested steps are complete, and the remaining work.
        self.covering = False
        self.wants_largest = self.full
        self.training = set()
        self.epochs = 0

    def arm(self):
        imports.after("torch.utils.data.dataloader", self._arm)
        # Where loaders are measured, or their memory counts against the GPU's, they work as the script says.
        shared = any(card["device"]["host_link"]["kind"] == "shared" for card in self.session.setup["cards"])
        if self.session.virtual and not self.feeding.asked and not shared:
            self.queues.arm()

    def _arm(self, module):
        self._arm_passes(module.DataLoader, module._BaseDataLoaderIter)
        iterator_class, loaders = module._BaseDataLoaderIter, self
        original = iterator_class.__next__

        @alike(original)
        def __next__(self):  # noqa: N807 - it takes the method's place
            batch = loaders.before_batch(self)
            if batch is not None:
                return batch[0]
            kept = loaders.session.kept
            allocations = kept.allocations() if kept is not None else 0
            began = feeding.now()
            try:
                batch = original(self)
            except StopIteration:
                if kept is not None:
                    kept.ended(self)
                loaders.ended(self)
                raise
            # A batch that was kept arrives at once, which says nothing of the loader.
            took = getattr(self, "took", None) or (began, feeding.now())
            if kept is not None:
                kept.given(self, allocations, took, batch)
            loaders.queues.arrived(self, took[1] - took[0])
            loaders.feeding.given(self, *took, batch, loaders.queues.is_short(self))
            loaders.given(self)
            return loaders.arrived(batch)

        iterator_class.__next__ = __next__

    def _arm_passes(self, loader_class, iterator_class):
        original, loaders = loader_class.__iter__, self

        @alike(original)
        def __iter__(self):  # noqa: N807 - it takes the method's place
            iterator = loaders.kept(self, iterator_class)
            if iterator is None:
                iterator = original(self)
                loaders.made(self, iterator)
            loaders.feeding.iterates(self, iterator)
            return iterator

        loader_class.__iter__ = __iter__

    # Batches of an earlier try

    def kept(self, loader, iterator_class):
        """Return an iterator over batches that an earlier try loaded, or None."""
        kept = self.session.kept
        try:
            return kept.iterator(loader, iterator_class) if kept is not None else None
        except Exception as error:
            self.session.remark("probe-failed", error, where="in a data loader")
            return None

    def made(self, loader, iterator):
        """Record the iterator of a loader that loads."""
        if self.session.kept is not None:
            self.session.kept.made(loader, iterator)

    # One batch of a loader

    def before_batch(self, iterator):
        """Handle the request for a batch: return a tuple with a replacement, or None. Ends the iteration if
        necessary.
        """
        try:
            began = self.passes.get(iterator)
            if began is None:
                self.sites.add(flows.site(frames_here()))
                began = self.passes[iterator] = _Pass(iterator, self.session.steps.rounds)
                self._begins(began)
            if not self.covering or not self._trains(began):
                return None
            if self.wants_largest:
                self.wants_largest = False
                return self._largest(iterator)
            ends = began.batches > 0
        except Exception as error:
            self.session.remark("probe-failed", error, where="in a data loader")
            return None
        if ends:
            self.ended(iterator)
            raise StopIteration
        return None

    def given(self, iterator):
        """Record that the loader yielded a batch."""
        began = self.passes.get(iterator)
        if began is not None:
            began.batches += 1
        if self.session.planned is not None:
            self.session.planned.given(iterator)

    def arrived(self, batch):
        """Apply a plan's changes to the batch."""
        planned = self.session.planned
        return planned.arrive(batch) if planned is not None else batch

    def ended(self, iterator):
        """Record that the loader's iteration ended."""
        began = self.passes.pop(iterator, None)
        if began is not None and self._trains(began):
            self.epoch_end = True
        if self.session.planned is not None:
            self.session.planned.ended(iterator)

    def _trains(self, began):
        """Return `True` if optimizers step while the script iterates over this loader."""
        if self.session.steps.rounds > began.rounds:
            self.training.add(began.key)
            self.feeding.trains(began.iterator())
        return began.key in self.training

    def settle(self):
        """Decide at the end which iterations belong to the training."""
        for began in list(self.passes.values()):
            self._trains(began)

    def _begins(self, began):
        if not self.covering or began.key not in self.training:
            return
        self.epochs += 1
        if self.session.evaluation or self.epochs > MAX_EPOCHS:
            self.session.finish("steps")

    def _largest(self, iterator):
        found = largest_batch(iterator)
        self.largest_batch = found.covered
        if found.remark:
            self.session.remark(found.remark, **found.values)
        return (found.batch,) if found.batch is not None else None

    # With full cover

    def has_more_to_cover(self):
        """Return `True` if the script has to continue after the requested steps."""
        if not self.full:
            return False
        if not self.covering:
            if not any(self._trains(began) for began in self.passes.values()):
                self.session.remark("no-loader")
                return False
            self.covering = True
        return self.session.steps.complete < self.session.setup["steps"] + MAX_STEPS_BEYOND
