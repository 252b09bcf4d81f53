"""`length-buckets`: samples of similar length are batched together, which reduces padding.

Each sample occurs once per epoch, as before, but in a batch with other samples. This changes the training.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from .registry import Stage, lever
from .target import Target, Undo, table, take_out
from .workers import Changed, again

# Number of batches that are sorted together.
POOL_BATCHES = 50


class Buckets(BatchSampler):
    """Batches of similar length: a pool of indices from the sampler is sorted by length, cut into batches,
    and the batches are shuffled.
    """

    def __init__(
        self, sampler: Any, batch_size: int, drop_last: bool, length: Callable[[int], int], pool: int
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._length = length
        self._pool = pool
        self._known: dict[int, int] = {}

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        rest: list[int] = []
        while pool := list(itertools.islice(indices, self._pool * self.batch_size)):
            pool.sort(key=self._length_of)
            batches = [
                pool[start : start + self.batch_size] for start in range(0, len(pool), self.batch_size)
            ]
            if len(batches[-1]) < self.batch_size:
                rest = batches.pop()
            for index in torch.randperm(len(batches)).tolist():
                yield batches[index]
        if rest and not self.drop_last:
            yield rest

    def _length_of(self, index: int) -> int:
        if index not in self._known:
            self._known[index] = self._length(index)
        return self._known[index]


@lever("length-buckets", Stage.DATA, 10)
def apply(target: Target, value: Any, _name: str) -> Undo:
    """Batch by length: `value` is true, the number of batches that are sorted together, or a table with
    `pool`.
    """

    changed = Changed()

    def reload(loader: Any) -> Any:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            target.note("an iterable data set cannot be batched by length")
            return loader
        if isinstance(loader.batch_sampler, Buckets):
            # Already changed in place, in an earlier epoch.
            return loader
        sampler = together(loader.batch_sampler, loader.dataset, value)
        if sampler is None:
            target.note("the loader has its own batch sampler, which stays unchanged")
            return loader
        return again(loader, changed, batch_sampler=sampler)

    def undo() -> None:
        take_out(target.reloads, reload)
        changed.undo()

    target.reloads.append(reload)
    return undo


def together(sampler: Any, dataset: Any, value: Any) -> Buckets | None:
    """Return a sampler of batches of similar length in place of torch's own; `None` for a custom sampler."""
    if type(sampler) is not BatchSampler:
        return None
    pool = int(table(value, "pool").get("pool", POOL_BATCHES))
    return Buckets(
        sampler.sampler, sampler.batch_size, sampler.drop_last, lambda index: _size(dataset[index]), pool
    )


def _size(item: Any) -> int:
    """Return the number of elements in a sample."""
    if isinstance(item, torch.Tensor):
        return item.numel()
    if isinstance(item, (str, bytes)):
        return len(item)
    if isinstance(item, dict):
        return sum(_size(entry) for entry in item.values())
    if isinstance(item, (list, tuple)):
        plain = bool(item) and isinstance(item[0], (int, float))
        return len(item) if plain else sum(_size(entry) for entry in item)
    size = getattr(item, "size", 1)
    return int(size) if isinstance(size, int) else 1
