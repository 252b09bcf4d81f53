"""A loader's batches in pieces."""

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
