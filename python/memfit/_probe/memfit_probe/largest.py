"""Builds the largest batch of a data set from its largest items, which are searched for a limited time."""

import itertools
import random
import time
from contextlib import contextmanager

from . import random_numbers

# Time limit of the search, and the maximum number of batches drawn from a custom sampler.
MAX_SECONDS = 5.0
MAX_BATCHES = 10_000
# With fewer items, equal sizes may be chance.
MIN_EQUAL_ITEMS = 32


class Found:
    """The largest batch, `True` if it is covered, and the remark for the report: its id and values."""

    def __init__(self, batch=None, covered=False, remark=None, **values):
        self.batch = batch
        self.covered = covered
        self.remark = remark
        self.values = values


def largest_batch(iterator):
    """Build the largest batch of the data set that a loader's iterator reads."""
    if getattr(iterator, "_dataset_kind", 1) != 0:
        return Found(remark="largest-batch", why="the data set is iterable only")
    with random_numbers_kept():
        sizes, complete = look(iterator._dataset)
        if not sizes:
            return Found(remark="largest-batch", why="no item of the data set could be read")
        looked = f"{len(sizes)} of {len(iterator._dataset)} items were read"
        if len(set(sizes.values())) == 1 and (complete or len(sizes) >= MIN_EQUAL_ITEMS):
            # Any full batch is the largest, and full batches have run.
            return Found(covered=True, remark=None if complete else "all-alike", items=looked)
        indices = choose(iterator, sizes)
        try:
            batch = fetch(iterator, indices)
        except Exception as error:
            why = f"building it failed with {type(error).__name__}: {error}"
            return Found(remark="largest-batch", why=why)
    return Found(batch=batch, covered=True, remark=None if complete else "largest-seen", items=looked)


def look(dataset, seconds=MAX_SECONDS):
    """Return sizes of items by index, as many as time allows, and `True` if these are all."""
    count = len(dataset)
    # Always the same items, spread over the whole data set.
    order = (
        random.Random(0).sample(range(count), count)
        if count <= 1_000_000
        else range(0, count, count // 100_000)
    )
    sizes, until = {}, time.monotonic() + seconds
    for index in order:
        try:
            sizes[index] = size(dataset[index])
        except Exception:
            break
        if time.monotonic() > until:
            break
    return sizes, len(sizes) == count


def choose(iterator, sizes):
    """Return the indices of the largest possible batch: the largest items, or the largest batch of the
    script's own sampler.
    """
    sampler = iterator._index_sampler
    largest_first = sorted(sizes, key=sizes.get, reverse=True)
    if not iterator._auto_collation:
        return largest_first[0]
    if type(sampler).__module__.startswith("torch.utils.data") and isinstance(
        getattr(sampler, "batch_size", None), int
    ):
        return largest_first[: sampler.batch_size]
    # Items are padded to the longest in their batch, so a batch's size is that of its largest item times
    # their number.
    batches = itertools.islice(iter(sampler), MAX_BATCHES)
    return max(
        batches, key=lambda indices: max((sizes.get(index, 0) for index in indices), default=0) * len(indices)
    )


def fetch(iterator, indices):
    """Build a batch of these items, as the loader would."""
    from torch.utils.data import _utils

    fetcher = _utils.fetch._MapDatasetFetcher(
        iterator._dataset, iterator._auto_collation, iterator._collate_fn, False
    )
    batch = fetcher.fetch(indices)
    return _utils.pin_memory.pin_memory(batch) if iterator._pin_memory else batch


def size(item, depth=0):
    """Return an item's size, in a unit that is the same for all items of a data set."""
    nbytes = getattr(item, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(item, (str, bytes)):
        return len(item)
    if depth > 8:
        return 1
    if isinstance(item, dict):
        return sum(size(value, depth + 1) for value in item.values())
    if isinstance(item, (list, tuple)):
        numbers = bool(item) and isinstance(item[0], (int, float))
        return len(item) if numbers else sum(size(value, depth + 1) for value in item)
    width_and_height = getattr(item, "size", None)
    if isinstance(width_and_height, tuple) and len(width_and_height) == 2:
        return width_and_height[0] * width_and_height[1]
    return 1


@contextmanager
def random_numbers_kept():
    """Restore the random state, since reading items may draw random numbers for augmentation."""
    import torch

    numpys = random_numbers.numpys()
    python, cpu = random.getstate(), torch.get_rng_state()
    numbers = numpys.get_state() if numpys is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numbers is not None:
            numpys.set_state(numbers)
