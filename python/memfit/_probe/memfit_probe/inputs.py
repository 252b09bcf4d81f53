"""The data sets that a script trains on, as far as tries have to know them: which items are largest, and how
long one takes.
"""

import itertools
import time
import weakref

from . import largest
from .identity import ByIdentity

# Before anything is tried, looking at a data set's items takes no longer than this.
SECONDS_BEFORE = 2.0
# Where a data set appears only in a try, it takes no longer than this.
SECONDS_IN_A_TRY = 1.0
# Of a sampler of the script's own so many batches are drawn.
MOST_BATCHES = 1000


def no_card_yet():
    """Stands for the card while only data may be looked at."""
    raise RuntimeError("the card is not there yet")


class Inputs:
    """Loaders, and what is known of the items of their data sets."""

    def __init__(self, session):
        self.session = session
        self.loaders = weakref.WeakSet()
        self.sizes = ByIdentity()
        self.item_ns = ByIdentity()
        # How many items were looked at, where batches are of the largest.
        self.sampled = ""

    def survey(self):
        """Before anything is tried: the data sets that are there already."""
        core = self.session.torch._C
        init, core._cuda_init = core._cuda_init, no_card_yet
        try:
            for loader in list(self.loaders):
                self._look(loader.dataset, SECONDS_BEFORE)
        finally:
            core._cuda_init = init

    def _look(self, dataset, seconds):
        """Sizes of items by index, and whether these are all."""
        known = self.sizes.get(dataset)
        if known is None:
            begin = time.perf_counter_ns()
            try:
                with largest.random_numbers_kept():
                    known = largest.look(dataset, seconds)
            except Exception:
                known = {}, False
            self.sizes.put(dataset, known)
            if known[0]:
                self.item_ns.put(dataset, (time.perf_counter_ns() - begin) // len(known[0]))
        return known

    def worst(self, dataset, sampler):
        """The largest items that a batch can be of; nothing where all are alike, or none can be looked at."""
        sizes, complete = self._look(dataset, SECONDS_IN_A_TRY)
        if len(set(sizes.values())) < 2:
            return None
        self.sampled = "all of them" if complete else f"{len(sizes)} of {len(dataset)} items were looked at"
        if type(sampler).__module__.startswith("torch.utils.data"):
            size = getattr(sampler, "batch_size", None) or 1
            return sorted(sizes, key=sizes.get, reverse=True)[:size]
        # Which items come together is the script's own choice.
        with largest.random_numbers_kept():
            drawn = list(itertools.islice(iter(sampler), MOST_BATCHES))
        batches = [batch for batch in drawn if isinstance(batch, (list, tuple)) and batch]
        return list(
            max(batches, key=lambda batch: max(sizes.get(i, 0) for i in batch) * len(batch), default=())
        )

    def of(self, iterator):
        """Sizes of the items that a loader's iterator goes over, by index, as far as they were looked at."""
        sizes, _ = self.sizes.get(getattr(iterator, "_dataset", None), ({}, False))
        return sizes

    def samples(self, iterator):
        """How many samples the data set of a loader's iterator has; None where it cannot count them."""
        try:
            return len(iterator._dataset)
        except Exception:
            return None

    def loading(self, iterator):
        """How a loader's batches are loaded, and how long an item takes; nothing where that was not
        measured.
        """
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
    """That of the first tensor among a call's arguments; 0 without one."""
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
    """What tuples, lists and dictionaries hold at their ends, so many values being looked at."""
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
    """Whether the script has its model, or some of its modules, compiled."""
    return any(
        getattr(each, "_compiled_call_impl", None) is not None or hasattr(each, "_orig_mod")
        for each in parts(model)
    )


def parts(model):
    """A model's modules, itself among them."""
    return model.modules() if model is not None else ()
