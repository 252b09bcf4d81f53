"""What of the script's data the run has covered: ends of epochs, evaluations, the largest batch.

With `--cover full` the run goes on after the steps that were asked for. The training loader gives one more
batch, made of the data set's largest items; then it ends early, as if the epoch were over, so that the script
itself goes on to its own evaluation. When the next epoch begins and an evaluation was seen, the run is
complete. An epoch without one is cut to a single batch, for a few epochs.
"""

import functools
import weakref

from . import feeding, imports
from .largest import largest_batch

# Epochs that are cut short in the hope of an evaluation; scripts that evaluate do so at least this often.
MAX_EPOCHS = 10
# Steps beyond those that were asked for, after which a script that does not heed its loader's end is stopped.
MAX_STEPS_BEYOND = 64


class _Pass:
    """One pass of a script over a loader."""

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
        self.forget()

    def forget(self):
        """In a forked child: nothing has been covered."""
        self.feeding.forget()
        self.passes = weakref.WeakKeyDictionary()
        self.largest_batch = False
        self.epoch_end = False
        # With full cover: whether the steps that were asked for are complete, and what remains to be done.
        self.covering = False
        self.wants_largest = self.full
        self.training = set()
        self.epochs = 0

    def arm(self):
        imports.after("torch.utils.data.dataloader", self._arm)

    def _arm(self, module):
        self._arm_passes(module.DataLoader)
        iterator_class, loaders = module._BaseDataLoaderIter, self
        original = iterator_class.__next__

        @functools.wraps(original)
        def __next__(self):  # noqa: N807 - it takes the method's place
            batch = loaders.before_batch(self)
            if batch is not None:
                return batch[0]
            began = feeding.now()
            try:
                batch = original(self)
            except StopIteration:
                loaders.ended(self)
                raise
            loaders.feeding.given(self, began, feeding.now(), batch)
            loaders.given(self)
            return loaders.arrived(batch)

        iterator_class.__next__ = __next__

    def _arm_passes(self, loader_class):
        original, loaders = loader_class.__iter__, self

        @functools.wraps(original)
        def __iter__(self):  # noqa: N807 - it takes the method's place
            iterator = original(self)
            loaders.feeding.iterates(self, iterator)
            return iterator

        loader_class.__iter__ = __iter__

    # One batch of a loader

    def before_batch(self, iterator):
        """A batch is asked for: a tuple with one that is given instead, or None. Ends the pass where it must
        end.
        """
        try:
            began = self.passes.get(iterator)
            if began is None:
                began = self.passes[iterator] = _Pass(iterator, self.session.steps.rounds)
                self._begins(began)
            if not self.covering or not self._trains(began):
                return None
            if self.wants_largest:
                self.wants_largest = False
                return self._largest(iterator)
            ends = began.batches > 0
        except Exception as error:
            self.session.remark("probe-failed", error, where="at a data loader")
            return None
        if ends:
            self.ended(iterator)
            raise StopIteration
        return None

    def given(self, iterator):
        """The loader has given a batch."""
        began = self.passes.get(iterator)
        if began is not None:
            began.batches += 1
        if self.session.planned is not None:
            self.session.planned.given(iterator)

    def arrived(self, batch):
        """The same batch, unless a plan has it otherwise."""
        planned = self.session.planned
        return planned.arrive(batch) if planned is not None else batch

    def ended(self, iterator):
        """The loader's pass is over."""
        began = self.passes.pop(iterator, None)
        if began is not None and self._trains(began):
            self.epoch_end = True
        if self.session.planned is not None:
            self.session.planned.ended(iterator)

    def _trains(self, began):
        """Whether optimizers step while the script goes over this loader."""
        if self.session.steps.rounds > began.rounds:
            self.training.add(began.key)
            self.feeding.trains(began.iterator())
        return began.key in self.training

    def settle(self):
        """The process has what was asked of it: which passes are the training's."""
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
        """The steps that were asked for are complete: whether the script has to go on."""
        if not self.full:
            return False
        if not self.covering:
            if not any(self._trains(began) for began in self.passes.values()):
                self.session.remark("no-loader")
                return False
            self.covering = True
        return self.session.steps.complete < self.session.setup["steps"] + MAX_STEPS_BEYOND
