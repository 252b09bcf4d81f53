"""Measures how a script's `DataLoader` feeds its training: the wait for each batch, and on request the time
per item on this host and the effect of other numbers of workers.
"""

import time
import weakref

from . import channel, sparse
from .inputs import first_dimension, leaves

# Maximum number of tensors in a batch that are checked.
MAX_PARTS = 4096
# Share of the time spent waiting for batches, beyond those that the workers prefetch, above which the loader
# is the bottleneck.
MIN_WAITING_SHARE = 0.8


class Feed:
    """One timed iteration of a script over a loader."""

    def __init__(self, iterator):
        self.workers = getattr(iterator, "_num_workers", 0)
        self.prefetch = getattr(iterator, "_prefetch_factor", None) or 0
        # The first batch includes one-time work; batches that workers started at once arrive together.
        self.ahead = 1 + self.workers * max(self.prefetch, 1)
        self.batches = 0
        self.counted = 0
        self.waited = 0
        self.since = self.until = 0
        self.on_card = False
        self.is_short = False

    def given(self, began, ended, batch, is_short):
        """Record when a batch was requested and when it arrived. `is_short` is `True` if the workers had
        fewer batches under way than the script asks for.
        """
        if self.batches == 0:
            self.on_card = on_card(batch)
        self.is_short |= is_short
        self.batches += 1
        if self.batches <= self.ahead:
            self.since = ended
            return
        self.counted += 1
        self.waited += ended - began
        self.until = ended

    def period(self):
        """Return the nanoseconds that the loader needs per batch; None if they are unknown."""
        if self.on_card or self.is_short or not self.counted:
            # The virtual GPU computes nothing, so the time of work on it is unknown. So is the speed of more
            # workers than are at work.
            return None
        if self.workers == 0:
            return self.waited // self.counted
        whole = self.until - self.since
        if self.counted < self.workers or self.waited < MIN_WAITING_SHARE * whole:
            return None
        return whole // self.counted


class Feeding:
    """The loaders of a process, and the iterations that train."""

    def __init__(self, session):
        self.session = session
        self.asked = session.setup.get("measure_loader_ms", 0)
        self.forget()

    def forget(self):
        """Reset the state in a forked child."""
        self.feeds = weakref.WeakKeyDictionary()
        self.loaders = weakref.WeakKeyDictionary()
        # The iterations that train, the last one last.
        self.training = []
        # A loader is kept alive only if it will be measured.
        self.kept = None
        self.any = None

    def iterates(self, loader, iterator):
        """Record that the script starts to iterate over a loader."""
        try:
            self.loaders[iterator] = weakref.ref(loader)
        except TypeError:
            return  # A custom class without weak references.
        if self.asked and self.any is None:
            self.any = loader

    def given(self, iterator, began, ended, batch, is_short):
        """Record a batch from a loader."""
        try:
            feed = self.feeds.get(iterator)
            if feed is None:
                feed = self.feeds[iterator] = Feed(iterator)
            feed.given(began, ended, batch, is_short)
        except Exception as error:
            self.session.remark("probe-failed", error, where="in a data loader's iteration")

    def trains(self, iterator):
        """Record that optimizers step while the script iterates over this loader."""
        if iterator is None:
            return
        feed = self.feeds.get(iterator)
        if feed is not None and feed not in self.training:
            self.training.append(feed)
        known = self.loaders.get(iterator)
        if self.asked and self.kept is None and known is not None:
            self.kept = known()

    def describe(self):
        """Return the facts about the loaders that train, as a field of the last message."""
        try:
            return self._known()
        except Exception as error:
            self.session.remark("probe-failed", error, where="while measuring data loading")
            return None

    def _known(self):
        # Under a plan, the loaders yield micro-batches.
        synthetic = self.session.setup["synthetic"]["data"] is not None
        if not self.training or synthetic or self.session.planned is not None:
            return None
        known = [period for period in (feed.period() for feed in self.training) if period is not None]
        return {
            "workers": self.training[-1].workers,
            "batches": sum(feed.batches for feed in self.training),
            "period_ns": min(known, default=None),
        }

    def measure(self):
        """Measure the training's loader separately, on request, and report."""
        loader = self.kept if self.kept is not None else self.any
        if not self.asked or loader is None or (channel.number("RANK") or 0) > 0:
            return
        from . import loader_trials

        given = sum(feed.batches for feed in self.training)
        loader_trials.Trials(self.session.torch, loader, self.asked / 1000).run(given)


def on_card(batch):
    """Return `True` if a tensor of the batch is on a GPU."""
    return any(getattr(part, "is_cuda", False) for part in leaves(batch, MAX_PARTS))


def nbytes(batch):
    """Return the bytes of a batch's tensors and arrays."""
    return sum(map(sparse.nbytes, leaves(batch, MAX_PARTS)))


def samples(torch, batch):
    """Return the number of samples in a batch: the first dimension of its first tensor, or 1."""
    return first_dimension(torch, [batch]) or 1


def now():
    """Return a monotonic time in nanoseconds."""
    return time.perf_counter_ns()
