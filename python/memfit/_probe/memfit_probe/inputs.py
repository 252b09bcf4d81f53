"""Finds the largest items of the data sets that a script trains on, and the time to load one."""

import contextlib
import itertools
import time
import weakref

from . import largest
from .identity import ByIdentity

# Time limit for reading a data set's items before the first try.
SECONDS_BEFORE = 2.0
# Time limit for a data set that first appears in a try.
SECONDS_IN_A_TRY = 1.0
# Maximum number of batches drawn from a custom sampler.
MAX_BATCHES = 1000


def _no_gpu_yet():
    raise RuntimeError("the GPU is not available yet")


@contextlib.contextmanager
def without_gpu(torch):
    """Make every use of the GPU fail, instead of initialising CUDA.

    The function of Python is replaced as well: tries are prepared within it, where its lock is held, and
    another call would wait for ever.
    """
    core, cuda = torch._C, torch.cuda
    init, lazy_init = core._cuda_init, cuda._lazy_init
    core._cuda_init = cuda._lazy_init = _no_gpu_yet
    try:
        yield
    finally:
        core._cuda_init, cuda._lazy_init = init, lazy_init


class Inputs:
    """Loaders, and facts about the items of their data sets."""

    def __init__(self, session):
        self.session = session
        self.loaders = weakref.WeakSet()
        self.sizes = ByIdentity()
        self.item_ns = ByIdentity()
        # Number of items that were measured to find the largest, as text; empty if batches were not replaced.
        self.sampled = ""

    def survey(self):
        """Read the existing data sets before the first try."""
        with without_gpu(self.session.torch):
            for loader in list(self.loaders):
                self._look(loader.dataset, SECONDS_BEFORE)

    def _look(self, dataset, seconds):
        """Return the sizes of items by index, and `True` if these are all."""
        known = self.sizes.get(dataset)
        if known is None:
            begin = time.perf_counter_ns()
            try:
                with largest.random_numbers_kept():
                    known = largest.look(dataset, seconds)
            except Exception:
                known = {}, False
            self.sizes.store(dataset, known)
            if known[0]:
                self.item_ns.store(dataset, (time.perf_counter_ns() - begin) // len(known[0]))
        return known

    def worst(self, dataset, sampler):
        """Return the largest items for a batch, or None if all are equal or none can be read."""
        sizes, complete = self._look(dataset, SECONDS_IN_A_TRY)
        if len(set(sizes.values())) < 2:
            return None
        self.sampled = "all of them" if complete else f"{len(sizes)} of {len(dataset)} items were inspected"
        if type(sampler).__module__.startswith("torch.utils.data"):
            size = getattr(sampler, "batch_size", None) or 1
            return sorted(sizes, key=sizes.get, reverse=True)[:size]
        # A custom sampler decides which items are batched together.
        with largest.random_numbers_kept():
            drawn = list(itertools.islice(iter(sampler), MAX_BATCHES))
        batches = [batch for batch in drawn if isinstance(batch, (list, tuple)) and batch]
        return list(
            max(batches, key=lambda batch: max(sizes.get(i, 0) for i in batch) * len(batch), default=())
        )

    def sizes_of(self, iterator):
        """Return the known sizes of the items that a loader's iterator reads, by index."""
        sizes, _ = self.sizes.get(getattr(iterator, "_dataset", None), ({}, False))
        return sizes

    def samples(self, iterator):
        """Return the number of samples in the data set of a loader's iterator; None if it has no length."""
        try:
            return len(iterator._dataset)
        except Exception:
            return None

    def loading(self, iterator):
        """Return a loader's settings and the time per item; None if that was not measured."""
        dataset = getattr(iterator, "_dataset", None)
        item_ns = self.item_ns.get(dataset)
        if item_ns is None:
            return None
        sizes, _ = self.sizes.get(dataset)
        return {
            "workers": getattr(iterator, "_num_workers", 0),
            "pinned": bool(getattr(iterator, "_pin_memory", False)),
            "item_ns": item_ns,
            "item_bytes": sum(sizes.values()) // len(sizes),
            "items": len(sizes),
        }


def first_dimension(torch, arguments):
    """Return the first dimension of the first tensor among a call's arguments, or 0."""
    waiting = [arguments]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, torch.Tensor):
            if value.dim():
                return value.size(0)
        elif isinstance(value, (tuple, list)):
            waiting.extend(value[:16])
        elif isinstance(value, dict):
            waiting.extend(list(value.values())[:16])
    return 0


def leaves(value, most):
    """Yield the values in nested tuples, lists and dictionaries; at most `most` values are checked."""
    waiting = [value]
    for _ in itertools.repeat(None, most):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, (tuple, list)):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        else:
            yield value


def is_compiled(model):
    """Return `True` if the script compiles the model, or some of its modules."""
    return any(
        getattr(each, "_compiled_call_impl", None) is not None or hasattr(each, "_orig_mod")
        for each in parts(model)
    )


def parts(model):
    """Return a model's modules, including itself."""
    return model.modules() if model is not None else ()
