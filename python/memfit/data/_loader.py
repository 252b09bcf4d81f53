"""`ImageLoader`: batches of images, and their memory.

Everything that needs no torch (order, budget, decoding) is in Rust. This module allocates memory from torch,
and reuses it when the copies from it are complete.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from memfit._core import Batches
from memfit.data import _labels
from memfit.data._augment import Augment, Drawn
from memfit.data._decode import Crop, Size, name_of, recipe
from memfit.data._geometry import followed
from memfit.data._settings import MAX_SIDE, bytes_of, integer, wide_and_high
from memfit.data._sources import source_of

# Time limit of one wait for a batch, so that Ctrl-C is handled in between.
_WAIT_MS = 200


class ImageLoader:
    """Batches of images and labels, decoded by threads within `memory` bytes, in an order that does not
    depend on the number of threads.

    `source` is a folder with one subfolder per class, a list of paths (with `labels`) or of (path, label)
    pairs, tar shards of WebDataset, or any data set with `len` whose items are bytes or a path, alone, with a
    target, or in a dictionary. Without labels, each target is 0.

    Labels keep their types: integers become an int64 tensor, floats float64 (an array keeps its own type),
    booleans bool, rows of numbers (multi-hot, several targets) batch x row, and anything else a list. Class
    names are numbered in sorted order, or in that of `classes`; the property of that name has the order. A
    missing or ambiguous label is an error.

    A batch is `(images, targets)`: uint8, batch x channels x height x width, in pinned memory if CUDA is
    available, and targets. With `follow`, targets are moved along with the image: boxes, keypoints and masks
    of dictionaries, and masks alone (a tensor, an array, or a path). With `with_mapping`, a third tensor has
    the mapping of each image's points (see `move_boxes`). With `augment`, an `Augment`, images are augmented
    after cropping and returned as floats.

    With `cache`, a folder, large images are decoded once, and read from small copies there afterwards: at
    most `cache_size` bytes in total, with a shorter side of `cache_side` pixels (twice the requested size).
    """

    def __init__(
        self,
        source: Any,
        labels: Any = None,
        *,
        classes: Sequence[str] | None = None,
        size: Size,
        batch_size: int = 1,
        memory: int | str = "2 GiB",
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        crop: Crop = "center",
        resize: int | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.0,
        mode: str = "rgb",
        dtype: str | torch.dtype | None = None,
        filter: str = "bilinear",  # noqa: A002
        margin: float | str | None = "auto",
        page: int = 0,
        upright: bool = True,
        channels_last: bool = False,
        with_mapping: bool = False,
        follow: bool = False,
        augment: Augment | None = None,
        threads: int | None = None,
        prefetch: int = 2,
        pin_memory: bool | None = None,
        on_error: str = "raise",
        oversize: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str = "20 GiB",
        cache_side: int | None = None,
    ) -> None:
        # The arguments, from which another process recreates it.
        self._given = {name: value for name, value in locals().items() if name != "self"}
        batch_size = integer("batch_size", batch_size, 1)
        if (rank is None) != (world_size is None):
            raise ValueError("rank= and world_size= have to be given together")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.dataset = source
        self.skipped: list[tuple[str, str]] = []
        found = source_of(source, labels, classes)
        self._samples, self._classes, self._table = found
        self._numbers = {name: number for number, name in enumerate(found.classes)}
        self._size = wide_and_high(size)
        if margin == "auto":
            margin = 1.0 if crop == "random" else 2.0
        options: dict[str, Any] = {
            "size": (self._size[1], self._size[0]),
            "crop": crop,
            "resize": resize,
            "scale": scale,
            "ratio": ratio,
            "flip": flip,
            "mode": mode,
            "filter": filter,
            "margin": margin,
            "page": page,
            "upright": upright,
        }
        self._recipe = recipe(dtype=dtype, **options)
        # Without a dtype, the first image's is used, and others are not converted implicitly.
        self._converts = dtype is not None
        first_type, self._bands = self._samples.first(self._recipe)
        self._dtype = first_type if dtype is None else name_of(dtype)
        self._channels_last = channels_last
        self._with_mapping = with_mapping
        self._follow = follow
        self._augment = augment
        if augment is not None and with_mapping and augment.moves:
            raise ValueError(
                "with_mapping=True returns the mapping of the crop, without the movements of augment=: "
                "follow=True moves targets along"
            )
        self._memory = bytes_of(memory)
        self._threads = integer("threads", threads or len(os.sched_getaffinity(0)), 1)
        self._prefetch = integer("prefetch", prefetch, 0)
        self._pinned = pin_memory
        self._on_error = on_error
        self._oversize = oversize or on_error
        self._shuffle = shuffle
        self._seed = integer("seed", seed, 0)
        self._world = None if world_size is None else integer("world_size", world_size, 1)
        self._rank = None if rank is None else integer("rank", rank, 0)
        side = integer("cache_side", cache_side or 2 * max(self._size), 1, MAX_SIDE)
        self._cache = None if cache is None else (os.fspath(cache), side, bytes_of(cache_size, "cache_size"))
        # The next or current epoch, the number of samples that all ranks got of it, and a flag if it has
        # begun.
        self._epoch = 0
        self._position = 0
        self._begun = False
        # Reports contradictory settings now rather than in the first epoch.
        self._pass(start=0)

    @property
    def classes(self) -> list[str]:
        """The class names in the order of their labels."""
        return self._classes

    @property
    def epoch(self) -> int:
        """The number of the next or current epoch."""
        return self._epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._pass(start=0).batches

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, as for a `DistributedSampler`; a state loaded for that epoch is kept."""
        epoch = integer("epoch", epoch, 0)
        if epoch != self._epoch or self._begun:
            self._position = 0
        self._epoch, self._begun = epoch, False

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last delivered batch: a few numbers, the same on every rank."""
        return {
            "version": 1,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "samples": len(self._samples),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved position, with any number of threads and ranks, and any batch size."""
        if state.get("version") != 1:
            raise ValueError("this is not the state of a memfit.data.ImageLoader")
        if state["samples"] != len(self._samples):
            raise ValueError(
                f"the state is for {state['samples']} samples, but there are {len(self._samples)}: the data "
                "has changed"
            )
        self._seed, self._epoch, self._position = state["seed"], state["epoch"], state["position"]
        self._begun = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A spawned process is not in the process group, and lists the source itself.
        rank, world = self._ranks()
        options = {**self._given, "rank": rank, "world_size": world}
        return _made, (options, self.state_dict())

    def __iter__(self) -> Iterator[Any]:
        return self.batches()

    def batches(self, first: int = 0, step: int = 1) -> Iterator[Any]:
        """Return the batches of the next epoch; with `step`, every `step`-th one from `first` on, for several
        workers.
        """
        if self._begun:
            self._epoch, self._position = self._epoch + 1, 0
        self._begun = True
        return self._run(first, step)

    def _run(self, first: int, step: int) -> Iterator[Any]:
        pinned, epoch = self._pins(), self._epoch
        run = self._pass(start=self._position, pinned=pinned, first=first, step=step)
        # Memory that is being filled, and events after the copies of delivered batches.
        filling: deque[tuple[int, torch.Tensor]] = deque()
        copies: deque[torch.cuda.Event] = deque()
        more = True
        try:
            while True:
                while copies and copies[0].query():
                    copies.popleft()
                # The user may still hold the previous batch, even if its copy is complete.
                while more and len(filling) + max(1, len(copies)) < run.slots:
                    memory = self._allocate(pinned)
                    number = run.offer(memory.data_ptr(), memory.nbytes)
                    if number is None:
                        more = False
                    else:
                        filling.append((number, memory))
                if not filling:
                    if not more:
                        break
                    copies.popleft().synchronize()
                    continue
                while (taken := run.take(_WAIT_MS)) is None:
                    pass
                number, memory = filling.popleft()
                indices, targets, mappings, left = taken
                self._position = run.position(number + 1)
                self.skipped += left
                if not indices:
                    continue
                drawn = self._drawn(indices, epoch)
                batch = self._deliver(memory, targets, mappings, drawn)
                if self._augment is not None:
                    images, labels, *others = batch
                    mixed = self._augment.mixed(images, labels, self._seed, epoch, indices[0])
                    batch = (*mixed, *others)
                del taken
                yield batch
                if pinned:
                    # Work that the user queued with this batch comes before this event.
                    mark = torch.cuda.Event()
                    mark.record()
                    copies.append(mark)
                del memory
        finally:
            run.close()
        self._epoch, self._position, self._begun = self._epoch + 1, 0, False

    def _drawn(self, indices: list[int], epoch: int) -> list[Drawn] | None:
        if self._augment is None:
            return None
        size = (self._size[1], self._size[0])
        return [self._augment.draw(self._seed, epoch, index, size) for index in indices]

    def _deliver(
        self, memory: torch.Tensor, targets: list[Any], mappings: list[Any], drawn: list[Drawn] | None
    ) -> tuple[Any, ...]:
        images = memory[: len(targets)]
        if self._channels_last:
            images = images.permute(0, 3, 1, 2)
        labels = self._labels_of(targets, mappings, drawn)
        if self._augment is not None and drawn is not None:
            images = self._augment(images, drawn)
        if self._with_mapping:
            return images, labels, torch.tensor(mappings, dtype=torch.float64)
        return images, labels

    def _labels_of(
        self, targets: list[Any], mappings: list[Any], drawn: list[Drawn] | None
    ) -> torch.Tensor | list[Any]:
        if self._follow:
            given = targets if self._table is None else [self._table[target] for target in targets]
            size = (self._size[1], self._size[0])
            moved = [followed(*pair, size) for pair in zip(given, mappings, strict=True)]
            if self._augment is not None and drawn is not None:
                pairs = zip(moved, drawn, strict=True)
                moved = [self._augment.follow(target, one, size) for target, one in pairs]
            masks = all(isinstance(target, torch.Tensor) for target in moved)
            return torch.stack(moved) if masks else moved
        if self._table is None:
            return _labels.collated(targets, self._numbers)
        if isinstance(self._table, torch.Tensor):
            return self._table[torch.tensor(targets, dtype=torch.int64)]
        return [self._table[target] for target in targets]

    def _allocate(self, pinned: bool) -> torch.Tensor:
        width, height = self._size
        shape = (height, width, self._bands) if self._channels_last else (self._bands, height, width)
        return torch.empty((self.batch_size, *shape), dtype=getattr(torch, self._dtype), pin_memory=pinned)

    def _pins(self) -> bool:
        # A forked worker process cannot use CUDA.
        if torch.utils.data.get_worker_info() is not None:
            return False
        if self._pinned is None:
            self._pinned = torch.cuda.is_available()
        return self._pinned

    def _ranks(self) -> tuple[int, int]:
        if self._rank is not None and self._world is not None:
            return self._rank, self._world
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _pass(self, start: int, pinned: bool = False, first: int = 0, step: int = 1) -> Batches:
        rank, world = self._ranks()
        return Batches(
            self._samples,
            self._recipe,
            size=self._size,
            dtype=self._dtype,
            bands=self._bands,
            convert=self._converts,
            planar=not self._channels_last,
            batch_size=self.batch_size,
            memory=self._memory,
            threads=self._threads,
            prefetch=self._prefetch,
            pinned=pinned,
            shuffle=self._shuffle,
            drop_last=self.drop_last,
            seed=self._seed,
            epoch=self._epoch,
            start=start,
            rank=rank,
            world_size=world,
            first=first,
            step=step,
            on_error=self._on_error,
            oversize=self._oversize,
            cache=self._cache,
        )


def _made(options: dict[str, Any], state: dict[str, int]) -> ImageLoader:
    """Recreate the loader in another process, at its position."""
    loader = ImageLoader(**options)
    loader.load_state_dict(state)
    return loader
