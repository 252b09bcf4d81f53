"""Wraps an `ImageLoader` as a `torch.utils.data` data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from memfit.data._loader import ImageLoader


class ImageBatches(IterableDataset[Any]):
    """The batches of a loader as an `IterableDataset`: `DataLoader(ImageBatches(loader), batch_size=None)`.

    One process is enough, since the loader has its own threads. With N workers, each makes every N-th batch,
    and the overall order is the same; memory and threads then count per worker.

    With `names`, a batch is a dictionary with these keys, for trainers that call a model with keyword
    arguments: `("pixel_values", "labels")`.
    """

    def __init__(self, loader: ImageLoader, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.loader = loader
        self.names = names

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        batches = iter(self.loader) if worker is None else self.loader.batches(worker.id, worker.num_workers)
        if self.names is None:
            return batches
        # One name for each part: images, targets, and mappings if requested.
        return (dict(zip(self.names, batch, strict=False)) for batch in batches)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return the loader's position."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved position."""
        self.loader.load_state_dict(state)
