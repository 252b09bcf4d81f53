"""A script's own `DataLoader` measured on the host: what an item and a batch take, and what each number of
workers gives.

It is made again with other numbers of workers and everything else as the script has it, and gone through as
fast as it gives. Batches repeat where a data set is short.
"""

import os

from . import channel
from .feeding import nbytes, now, on_card, samples
from .inputs import leaves
from .largest import random_numbers_kept

# Items that are timed one by one, and the least of them, however long they take.
MOST_ITEMS = 256
LEAST_ITEMS = 4
# A batch that takes longer than this is not waited for.
PATIENCE = 120
# A trial takes at most so many times what it was given.
LONGEST = 4
# A batch is put together and copied so many times, of which the fastest counts.
COPIES = 3


class Again:
    """What a sampler gives, again and again."""

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
    """Items that were timed one by one; nothing where they do not come so."""

    median_ns = slowest_ns = collate_ns = None
    measured = 0


class Given:
    """What a loader gave in the time that counts."""

    batches = samples = wall_ns = start_ns = slowest_ns = 0


class Trials:
    """One loader, tried with several numbers of workers for some seconds each."""

    def __init__(self, torch, loader, seconds):
        self.torch = torch
        self.loader = loader
        self.seconds = seconds
        module = torch.utils.data
        self.iterable = isinstance(loader.dataset, module.IterableDataset)
        # Through the loader's own method, and not the one that watches the script.
        following = module.dataloader._BaseDataLoaderIter.__next__
        self.following = getattr(following, "__wrapped__", following)

    def run(self, batches):
        """Measures it, and tells of each part as it is known."""
        with random_numbers_kept():
            self._tell_of_loader(batches)
            for workers in self._numbers():
                channel.send("loader_trial", workers=workers, **self._tried(workers))

    def _numbers(self):
        """The numbers of workers to try: up to as many as there are processors, and the script's own."""
        processors = len(os.sched_getaffinity(0))
        numbers, doubling = {0, processors, min(self.loader.num_workers, 4 * processors)}, 1
        while doubling < processors:
            numbers.add(doubling)
            doubling *= 2
        return sorted(numbers)

    def _tell_of_loader(self, batches):
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

    # Without workers, part by part

    def _timed_alone(self):
        found, batch, copy_ns, error = Items(), None, 0, None
        try:
            batch = self._first_batch(found)
            copy_ns = min(self._copied(batch) for _ in range(COPIES))
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
            # Items do not come one by one.
            return self.following(iter(self._made(0)))
        times, items, until = [], [], now() + int(self.seconds * 1e9)
        for index in indices:
            began = now()
            items.append(loader.dataset[index])
            times.append(now() - began)
            if len(times) >= LEAST_ITEMS and (now() > until or len(times) >= MOST_ITEMS):
                break
        # The rest of a large batch repeats what is there: collating takes as long.
        items += [items[place % len(times)] for place in range(len(indices) - len(items))]
        collated = []
        for _ in range(COPIES):
            began = now()
            batch = loader.collate_fn(items)
            collated.append(now() - began)
        found.collate_ns = min(collated)
        times.sort()
        found.median_ns, found.slowest_ns, found.measured = times[len(times) // 2], times[-1], len(times)
        return batch

    def _copied(self, batch):
        """Nanoseconds of a copy of a batch, as pinning makes one."""
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
        """The script's loader with so many workers."""
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
            options["timeout"] = PATIENCE
        if self.iterable:
            options.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
        elif loader._auto_collation:
            options["batch_sampler"] = Again(loader.batch_sampler)
        else:
            options.update(batch_size=None, sampler=Again(loader.sampler))
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
        """As many batches as time allows, and no fewer than one of each worker beyond those that were begun
        at the start.
        """
        self.following(iterator)
        first = last = now()
        found.start_ns = first - began
        ahead = workers * (getattr(iterator, "_prefetch_factor", None) or 0)
        since, given, enough = first, 0, max(workers, 2)
        while True:
            if now() - first > LONGEST * self.seconds * 1e9:
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
    """Bytes of a process that no other one shares; 0 where it cannot be told."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            parts = [line.split() for line in file if line.startswith("Private_")]
    except OSError:
        return 0
    return sum(int(part[1]) * 1024 for part in parts if len(part) == 3)
