"""An `ImageLoader` where a `torch.utils.data` data set is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from memfit.data._loader import ImageLoader


class ImageBatches(IterableDataset[Any]):
    """The batches of a loader as an `IterableDataset`: `DataLoader(ImageBatches(loader), batch_size=None)`.

    One process is enough, since the loader has threads of its own. With several workers, each makes every so many-th
    batch, in the same order altogether; memory and threads are then each worker's.
    """

    def __init__(self, loader: ImageLoader) -> None:
        super().__init__()
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return iter(self.loader)
        return self.loader.batches(worker.id, worker.num_workers)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Name the next pass."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another one stood."""
        self.loader.load_state_dict(state)
