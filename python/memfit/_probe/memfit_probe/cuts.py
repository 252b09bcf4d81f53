"""Divides a loader's batches into micro-batches, and tracks which one the loop is at."""

import weakref
from collections import deque


class Piece:
    """A micro-batch's position in its batch."""

    def __init__(self, samples, batch, last):
        self.samples = samples
        self.batch = batch
        self.last = last


class Pieces:
    """Wraps a loader's batch sampler and divides each batch."""

    def __init__(self, sampler, planned, dataset):
        self.sampler = sampler
        self.planned = planned
        self.dataset = dataset
        self.made = deque()

    def __iter__(self):
        # With persistent workers, an iteration restarts the same sampler, wherever the last loop stopped.
        self.made.clear()
        worst = self.planned.worst(self.dataset, self.sampler)
        for indices in self.sampler:
            if not isinstance(indices, (list, tuple)):
                self.made.append(None)
                yield indices
                continue
            if worst:
                indices = (worst * (len(indices) // len(worst) + 1))[: len(indices)]
            start, stop = self.planned.share(len(indices))
            bounds = self.planned.bounds(len(indices))
            for begin, end in bounds:
                self.made.append(Piece(end - begin, stop - start, end == bounds[-1][1]))
                yield indices[begin:end]

    def __len__(self):
        # Scripts compute schedules from the number of batches.
        return len(self.sampler)

    def __getattr__(self, name):
        # An object that is being copied has no sampler yet.
        return (
            getattr(self.__dict__["sampler"], name)
            if "sampler" in self.__dict__
            else object.__getattribute__(self, name)
        )


class Fetched:
    """The micro-batches that a loop has fetched but not finished: some loops fetch one batch ahead."""

    def __init__(self):
        self.iterator = None
        self.waiting = deque()
        # Number of batches held while one is trained on; unknown before the first.
        self.in_hand = None

    @property
    def piece(self):
        """The micro-batch in training."""
        return self.waiting[0] if self.waiting else None

    def fetch(self, iterator, piece):
        """Record that the loader yielded a micro-batch, or that it is exhausted."""
        known = self.iterator() if self.iterator is not None else None
        if known is not iterator:
            self.iterator = weakref.ref(iterator)
            self.waiting.clear()
        self.waiting.append(piece)
        self._let_go(self.in_hand or len(self.waiting))

    def begin(self):
        """Record that the model is about to train."""
        if self.in_hand is None and self.waiting:
            # A loop that fetched more has skipped some.
            self.in_hand = 2 if len(self.waiting) == 2 else 1
            self._let_go(self.in_hand)

    def _let_go(self, kept):
        while len(self.waiting) > kept:
            self.waiting.popleft()
