"""Measures a script's own `DataLoader` on the host: the time per item and per batch, and the throughput for
each number of workers.

The loader is recreated with other numbers of workers and otherwise unchanged, and read as fast as possible.
Short data sets repeat.
"""

import os

from . import channel
from .feeding import nbytes, now, on_card, samples
from .inputs import leaves
from .largest import random_numbers_kept

# Maximum and minimum number of items that are timed one by one.
MAX_ITEMS = 256
MIN_ITEMS = 4
# Seconds to wait for a batch.
BATCH_TIMEOUT_SECONDS = 120
# A trial takes at most this many times its time budget.
MAX_OVERRUN = 4
# Number of times that a batch is collated and copied; the fastest counts.
COLLATE_REPEATS = 3


class EndlessSampler:
    """Repeats a sampler's indices endlessly."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        given = True
        while given:
            given = False
            for indices in self.sampler:
                given = True
                yield indices


class Items:
    """Times of items read one by one; None if the data set does not allow that."""

    median_ns = slowest_ns = collate_ns = None
    measured = 0


class Given:
    """Results of a loader in the measured time."""

    batches = samples = wall_ns = start_ns = slowest_ns = 0


class Trials:
    """Measures one loader with several numbers of workers, for some seconds each."""

    def __init__(self, torch, loader, seconds):
        self.torch = torch
        self.loader = loader
        self.seconds = seconds
        module = torch.utils.data
        self.iterable = isinstance(loader.dataset, module.IterableDataset)
        # The original method, without the probe's wrapper.
        following = module.dataloader._BaseDataLoaderIter.__next__
        self.following = getattr(following, "__wrapped__", following)

    def run(self, batches):
        """Measure the loader and send each result."""
        with random_numbers_kept():
            self._send_loader(batches)
            for workers in self._numbers():
                channel.send("loader_trial", workers=workers, **self._tried(workers))

    def _numbers(self):
        """Return the numbers of workers to try: up to the number of CPUs, and the script's own."""
        processors = len(os.sched_getaffinity(0))
        numbers, doubling = {0, processors, min(self.loader.num_workers, 4 * processors)}, 1
        while doubling < processors:
            numbers.add(doubling)
            doubling *= 2
        return sorted(numbers)

    def _send_loader(self, batches):
        loader = self.loader
        try:
            items = len(loader.dataset)
        except Exception:
            items = None
        channel.send(
            "loader",
            dataset=type(loader.dataset).__name__,
            items=items,
            given=batches,
            workers=loader.num_workers,
            prefetch=loader.prefetch_factor,
            pinned=bool(loader.pin_memory),
            persistent=bool(loader.persistent_workers),
            **self._timed_alone(),
        )

    # Without workers, each part separately

    def _timed_alone(self):
        found, batch, copy_ns, error = Items(), None, 0, None
        try:
            batch = self._first_batch(found)
            copy_ns = min(self._copied(batch) for _ in range(COLLATE_REPEATS))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        return {
            "samples": samples(self.torch, batch) if batch is not None else 0,
            "bytes": nbytes(batch),
            "on_card": on_card(batch),
            "item_ns": found.median_ns,
            "slowest_ns": found.slowest_ns,
            "measured": found.measured,
            "collate_ns": found.collate_ns,
            "copy_ns": copy_ns,
            "error": error,
        }

    def _first_batch(self, found):
        loader = self.loader
        indices = None if self.iterable else next(iter(loader._index_sampler))
        if self.iterable or not loader._auto_collation or hasattr(loader.dataset, "__getitems__"):
            # Items cannot be read one by one.
            return self.following(iter(self._made(0)))
        times, items, until = [], [], now() + int(self.seconds * 1e9)
        for index in indices:
            began = now()
            items.append(loader.dataset[index])
            times.append(now() - began)
            if len(times) >= MIN_ITEMS and (now() > until or len(times) >= MAX_ITEMS):
                break
        # The rest of a large batch repeats these items: collating them takes as long.
        items += [items[place % len(times)] for place in range(len(indices) - len(items))]
        collated = []
        for _ in range(COLLATE_REPEATS):
            began = now()
            batch = loader.collate_fn(items)
            collated.append(now() - began)
        found.collate_ns = min(collated)
        times.sort()
        found.median_ns, found.slowest_ns, found.measured = times[len(times) // 2], times[-1], len(times)
        return batch

    def _copied(self, batch):
        """Return the nanoseconds of a copy of a batch, as pinning makes."""
        tensors = [part for part in leaves(batch, 4096) if isinstance(part, self.torch.Tensor)]
        room = [self.torch.empty_like(part) for part in tensors if not part.is_cuda]
        for part in room:
            part.zero_()
        began = now()
        for to, part in zip(room, (part for part in tensors if not part.is_cuda), strict=True):
            to.copy_(part)
        return now() - began

    # With workers

    def _made(self, workers):
        """Recreate the script's loader with another number of workers."""
        loader = self.loader
        options = {
            "num_workers": workers,
            "collate_fn": loader.collate_fn,
            "worker_init_fn": loader.worker_init_fn,
            "generator": loader.generator,
        }
        if workers:
            context = loader.multiprocessing_context
            options.update(prefetch_factor=loader.prefetch_factor, multiprocessing_context=context)
            options["timeout"] = BATCH_TIMEOUT_SECONDS
        if self.iterable:
            options.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
        elif loader._auto_collation:
            options["batch_sampler"] = EndlessSampler(loader.batch_sampler)
        else:
            options.update(batch_size=None, sampler=EndlessSampler(loader.sampler))
        return self.torch.utils.data.DataLoader(loader.dataset, **options)

    def _tried(self, workers):
        found, iterator, memory, error = Given(), None, 0, None
        try:
            began = now()
            iterator = iter(self._made(workers))
            self._go_through(iterator, workers, began, found)
            memory = sum(own_memory(worker.pid) for worker in getattr(iterator, "_workers", ()))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        finally:
            if workers and iterator is not None:
                iterator._shutdown_workers()
        return {
            "batches": found.batches,
            "samples": found.samples,
            "wall_ns": found.wall_ns,
            "start_ns": found.start_ns,
            "slowest_ns": found.slowest_ns,
            "memory": memory,
            "error": error,
        }

    def _go_through(self, iterator, workers, began, found):
        """Read as many batches as time allows, but at least one of each worker beyond those prefetched at the
        start.
        """
        self.following(iterator)
        first = last = now()
        found.start_ns = first - began
        ahead = workers * (getattr(iterator, "_prefetch_factor", None) or 0)
        since, given, enough = first, 0, max(workers, 2)
        while True:
            if now() - first > MAX_OVERRUN * self.seconds * 1e9:
                break
            try:
                batch = self.following(iterator)
            except StopIteration:
                break
            taken, last = now() - last, now()
            given += 1
            if given <= ahead:
                since = last
                continue
            found.batches += 1
            found.samples += samples(self.torch, batch)
            found.wall_ns = last - since
            found.slowest_ns = max(found.slowest_ns, taken)
            if found.batches >= enough and last - since > self.seconds * 1e9:
                break


def own_memory(pid):
    """Return the private memory of a process in bytes; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            parts = [line.split() for line in file if line.startswith("Private_")]
    except OSError:
        return 0
    return sum(int(part[1]) * 1024 for part in parts if len(part) == 3)
