"""A loader's batches in pieces, and which of them a loop is at."""

import weakref
from collections import deque


class Piece:
    """Where a piece of a batch lies in it."""

    def __init__(self, samples, batch, last):
        self.samples = samples
        self.batch = batch
        self.last = last


class Pieces:
    """A loader's sampler of batches, with each batch in pieces."""

    def __init__(self, sampler, planned, dataset):
        self.sampler = sampler
        self.planned = planned
        self.dataset = dataset
        self.made = deque()

    def __iter__(self):
        # A loader whose processes stay begins anew with what it has, wherever its loop stopped.
        self.made.clear()
        worst = self.planned.worst(self.dataset, self.sampler)
        for indices in self.sampler:
            if not isinstance(indices, (list, tuple)):
                self.made.append(None)
                yield indices
                continue
            if worst:
                indices = (worst * (len(indices) // len(worst) + 1))[: len(indices)]
            bounds = self.planned.bounds(len(indices))
            for begin, end in bounds:
                self.made.append(Piece(end - begin, len(indices), end == bounds[-1][1]))
                yield indices[begin:end]

    def __len__(self):
        # What a script plans by is how many batches there are.
        return len(self.sampler)

    def __getattr__(self, name):
        # A copy that is being made has no sampler yet.
        return (
            getattr(self.__dict__["sampler"], name)
            if "sampler" in self.__dict__
            else object.__getattribute__(self, name)
        )


class Fetched:
    """What a loop has fetched of its loader and is not done with: some fetch one batch ahead of the one that
    they train on.
    """

    def __init__(self):
        self.iterator = None
        self.waiting = deque()
        # How many are in hand while one is trained on; not known before the first is.
        self.in_hand = None

    @property
    def piece(self):
        """The one that is trained on."""
        return self.waiting[0] if self.waiting else None

    def fetch(self, iterator, piece):
        """The loader has given a piece, or says that there is no more."""
        known = self.iterator() if self.iterator is not None else None
        if known is not iterator:
            self.iterator = weakref.ref(iterator)
            self.waiting.clear()
        self.waiting.append(piece)
        self._let_go(self.in_hand or len(self.waiting))

    def begin(self):
        """The model is about to train."""
        if self.in_hand is None and self.waiting:
            # Who has fetched more has left some out.
            self.in_hand = 2 if len(self.waiting) == 2 else 1
            self._let_go(self.in_hand)

    def _let_go(self, kept):
        while len(self.waiting) > kept:
            self.waiting.popleft()
