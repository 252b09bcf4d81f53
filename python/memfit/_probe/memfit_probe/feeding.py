"""How a script's own `DataLoader` feeds its training: how long the script waits for each batch, and, where it
was asked for, what an item takes on this host and what other numbers of workers would give.
"""

import time
import weakref

from . import channel
from .inputs import first_dimension, leaves

# Of a batch so many parts are looked at.
MOST_PARTS = 4096
# What the workers had not begun together: a share of the time in which the script waited from which on it is
# the loader that sets the pace.
WAITED = 0.8


class Feed:
    """One pass of a script over a loader, timed."""

    def __init__(self, iterator):
        self.workers = getattr(iterator, "_num_workers", 0)
        self.prefetch = getattr(iterator, "_prefetch_factor", None) or 0
        # The first batch waits for what is done once; those that workers began at once come together.
        self.ahead = 1 + self.workers * max(self.prefetch, 1)
        self.batches = 0
        self.counted = 0
        self.waited = 0
        self.since = self.until = 0
        self.on_card = False

    def given(self, began, ended, batch):
        """A batch was asked for at one time and came at another."""
        if self.batches == 0:
            self.on_card = on_card(batch)
        self.batches += 1
        if self.batches <= self.ahead:
            self.since = ended
            return
        self.counted += 1
        self.waited += ended - began
        self.until = ended

    def period(self):
        """Nanoseconds in which the loader makes a batch; None where what was seen does not tell."""
        if self.on_card or not self.counted:
            # Nothing is computed on a card that is not there, so its time is not known.
            return None
        if self.workers == 0:
            return self.waited // self.counted
        whole = self.until - self.since
        if self.counted < self.workers or self.waited < WAITED * whole:
            return None
        return whole // self.counted


class Feeding:
    """The loaders of a process, and the pass that trains."""

    def __init__(self, session):
        self.session = session
        self.asked = session.setup.get("measure_loader_ms", 0)
        self.forget()

    def forget(self):
        """In a forked child: nothing has been loaded."""
        self.feeds = weakref.WeakKeyDictionary()
        self.loaders = weakref.WeakKeyDictionary()
        # The passes that train, the last one last.
        self.training = []
        # A loader is kept only where it will be measured.
        self.kept = None
        self.any = None

    def iterates(self, loader, iterator):
        """A script begins a pass."""
        try:
            self.loaders[iterator] = weakref.ref(loader)
        except TypeError:
            return  # A class of the script's own, which nothing can be kept beside.
        if self.asked and self.any is None:
            self.any = loader

    def given(self, iterator, began, ended, batch):
        """A loader gave a batch."""
        try:
            feed = self.feeds.get(iterator)
            if feed is None:
                feed = self.feeds[iterator] = Feed(iterator)
            feed.given(began, ended, batch)
        except Exception as error:
            self.session.remark("probe-failed", error, where="at a batch of a data loader")

    def trains(self, iterator):
        """Optimizers step while the script goes over this loader."""
        if iterator is None:
            return
        feed = self.feeds.get(iterator)
        if feed is not None and feed not in self.training:
            self.training.append(feed)
        known = self.loaders.get(iterator)
        if self.asked and self.kept is None and known is not None:
            self.kept = known()

    def tell(self):
        """What is known of the pass that trains, as a field of the last message."""
        try:
            return self._known()
        except Exception as error:
            self.session.remark("probe-failed", error, where="at what fed the training")
            return None

    def _known(self):
        # Under a plan, its pieces of batches are what is given.
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
        """Where it was asked for: takes the training's loader apart, and tells."""
        loader = self.kept if self.kept is not None else self.any
        if not self.asked or loader is None or (channel.number("RANK") or 0) > 0:
            return
        from . import loader_trials

        given = sum(feed.batches for feed in self.training)
        loader_trials.Trials(self.session.torch, loader, self.asked / 1000).run(given)


def on_card(batch):
    """Whether some part of a batch lies on a card."""
    return any(getattr(part, "is_cuda", False) for part in leaves(batch, MOST_PARTS))


def nbytes(batch):
    """Bytes of a batch's tensors and arrays."""
    sizes = (getattr(part, "nbytes", 0) for part in leaves(batch, MOST_PARTS))
    return sum(size for size in sizes if isinstance(size, int))


def samples(torch, batch):
    """Samples in a batch: the first dimension of its first tensor, or 1."""
    return first_dimension(torch, [batch]) or 1


def now():
    """Nanoseconds of a clock that only ever goes on."""
    return time.perf_counter_ns()
