"""An `ImageLoader` where a `torch.utils.data` data set is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from memfit.data._loader import ImageLoader


class ImageBatches(IterableDataset[Any]):
    """The batches of a loader as an `IterableDataset`: `DataLoader(ImageBatches(loader), batch_size=None)`.

    One process is enough, since the loader has threads of its own. With several workers, each makes every so
    many-th batch, in the same order altogether; memory and threads are then each worker's.

    With `names`, a batch is a dictionary of these, as trainers that call a model by name want it:
    `("pixel_values", "labels")`.
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
        # A name for each part that there is: images, targets, and mappings if they were asked for.
        return (dict(zip(self.names, batch, strict=False)) for batch in batches)

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
