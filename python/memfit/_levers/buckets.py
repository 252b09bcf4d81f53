"""`length-buckets`: samples of like length go into one batch, so that little of it is padding.

Each sample comes once in an epoch, as before; which come together is another matter, so it is another
training.
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

# Batches that are looked at together.
POOL = 50


class Buckets(BatchSampler):
    """Batches of like length: so many samples as the sampler gives them are sorted, cut, and shuffled as
    batches.
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
            pool.sort(key=self._of)
            batches = [
                pool[start : start + self.batch_size] for start in range(0, len(pool), self.batch_size)
            ]
            if len(batches[-1]) < self.batch_size:
                rest = batches.pop()
            for index in torch.randperm(len(batches)).tolist():
                yield batches[index]
        if rest and not self.drop_last:
            yield rest

    def _of(self, index: int) -> int:
        if index not in self._known:
            self._known[index] = self._length(index)
        return self._known[index]


@lever("length-buckets", Stage.DATA, 10)
def apply(target: Target, value: Any, _name: str) -> Undo:
    """Batch by length: `value` is true, the number of batches that are looked at together, or a table of
    `pool`.
    """

    changed = Changed()

    def reload(loader: Any) -> Any:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            target.note("samples that come one after the other cannot be batched by their length")
            return loader
        if isinstance(loader.batch_sampler, Buckets):
            # It was changed in place when it was gone over before.
            return loader
        sampler = together(loader.batch_sampler, loader.dataset, value)
        if sampler is None:
            target.note("the loader has a batch sampler of its own, which is left alone")
            return loader
        return again(loader, changed, batch_sampler=sampler)

    def undo() -> None:
        take_out(target.reloads, reload)
        changed.undo()

    target.reloads.append(reload)
    return undo


def together(sampler: Any, dataset: Any, value: Any) -> Buckets | None:
    """A sampler of batches of like length in the place of torch's own; nothing where it is somebody's."""
    if type(sampler) is not BatchSampler:
        return None
    pool = int(table(value, "pool").get("pool", POOL))
    return Buckets(
        sampler.sampler, sampler.batch_size, sampler.drop_last, lambda index: _size(dataset[index]), pool
    )


def _size(item: Any) -> int:
    """Numbers in an item."""
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
