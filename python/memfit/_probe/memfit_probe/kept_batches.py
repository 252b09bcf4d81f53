"""Keeps the batches of the first try for later ones, so that a data set is read and decoded once.

Tries are forked from one process and draw the same random numbers, so their data loaders yield the same
batches. The first try writes its batches to a file, which the parent process reads before the next fork. A
later try gets them as long as it does the same: its iterations over loaders are compared in their order, by
the loader and by the state of all random number generators. At the first difference it loads by itself.

Batches are kept only if loading does not use the GPU, and if they consist of tensors in host memory, plain
values and containers.
"""

import contextlib
import hashlib
import importlib
import os
import random
import sys

from . import random_numbers

# Maximum number of bytes that are kept, in the memory of all tries together.
MAX_BYTES = 1 << 30
# Maximum number of generators, so that the comparison stays cheap.
MAX_GENERATORS = 8


class KeptBatches:
    """The batches of one try, in the parent process and in its tries."""

    def __init__(self, session, folder):
        self.session = session
        self.torch = session.torch
        self.file = os.path.join(folder, "batches")
        # The iterations of the first try, in their order; None before it has ended.
        self.iterations = None
        self.forked()

    def forked(self):
        """Reset the state at the beginning of a try."""
        self.count = 0
        self.bytes = 0
        self.serves = bool(self.iterations)
        # The iterations of this try; None if they are not written.
        self.written = None if os.path.exists(self.file) else []

    # In the parent

    def catch_up(self):
        """Read the batches that the first try wrote."""
        if self.iterations is None and os.path.exists(self.file):
            self.iterations = []
            with contextlib.suppress(Exception):
                self.iterations = self.torch.load(self.file, weights_only=True)
            # The empty file shows that no other try has to write one. It replaces the file, from which the
            # batches may be mapped.
            empty = f"{self.file}.empty"
            with open(empty, "wb"):
                pass
            os.replace(empty, self.file)

    # In a try

    def iterator(self, loader, base):
        """Return an iterator over kept batches, of a class that extends `base`; None if the loader loads."""
        place, self.count = self.count, self.count + 1
        if not self._loads_as_usual():
            self._give_up()
        if not self.serves and self.written is None:
            return None
        states = self._states(loader)
        identity = self._identity(loader, states)
        if identity is None:
            self._give_up()
        elif self.serves:
            known = self.iterations[place] if place < len(self.iterations) else None
            if known is not None and known["identity"] == identity:
                return _iterator_class(base)(loader, known, self)
            self._give_up()
        else:
            self.written.append({"identity": identity, "before": states, "batches": [], "ended": False})
        return None

    def made(self, loader, iterator):
        """Record the loader's own iterator, which has drawn random numbers."""
        if self.written and "after" not in self.written[-1]:
            self.written[-1].update(loader=loader, iterator=iterator, after=self._states(loader))

    def allocations(self):
        """Return the number of allocations on the GPU so far, if batches are written."""
        if self.written is None:
            return 0
        stats = self.torch._C._cuda_memoryStats
        return sum(stats(device)["allocation"]["all"]["allocated"] for device in self.session.devices())

    def given(self, iterator, allocations, took, batch):
        """Record a batch that the loader has just loaded. `took` has the times of its request and arrival,
        `allocations` is the number of allocations at the request.
        """
        iteration = self._iteration(iterator)
        if iteration is None:
            return
        if self.allocations() != allocations:
            self._give_up()
            return
        try:
            copy, pinned = self._copy(batch)
        except Exception:
            self._give_up()
            return
        after = self._states(iteration["loader"])
        iteration["batches"].append({"batch": copy, "pinned": pinned, "took": took, "after": after})

    def ended(self, iterator):
        """Record that the loader has no more batches."""
        iteration = self._iteration(iterator)
        if iteration is not None:
            iteration["ended"] = True

    def write(self):
        """Write the batches at the end of a try that did all of its steps."""
        if not self.written or not self.session.steps.enough:
            return
        for iteration in self.written:
            del iteration["loader"], iteration["iterator"]
        # Tries may run at the same time.
        own = f"{self.file}.{os.getpid()}"
        # The script's own function would treat it as a checkpoint.
        self.session.checkpoints.save(self.written, own)
        os.rename(own, self.file)
        self.written = None

    def _give_up(self):
        self.serves = False
        self.written = None

    def _iteration(self, iterator):
        """Return the record of an iteration, if it is to be written."""
        return next((each for each in self.written or () if each.get("iterator") is iterator), None)

    def _loads_as_usual(self):
        """Return `True` if nothing changes what this try loads. A plan divides batches in the loaders."""
        session, plan = self.session, self.session.planned
        changed = session.loaders.full or session.loaders.feeding.asked
        spread = plan.spread or plan.library
        return not (changed or plan.micro_batch or plan.levers or spread or plan.part or plan.infers)

    def _identity(self, loader, states):
        """Return what iterations that yield the same batches have in common; None if that is unknown."""
        context = loader.multiprocessing_context
        if context is not None and context.get_start_method() != "fork":
            # Such workers can use the GPU.
            return None
        if _is_pipe(loader.dataset) or len(self._generators(loader)) > MAX_GENERATORS:
            return None
        tensors, *others = states
        digest = hashlib.sha256(repr(others).encode())
        for state in tensors:
            digest.update(state.numpy().tobytes())
        kinds = [f"{type(part).__module__}.{type(part).__qualname__}" for part in (loader, loader.dataset)]
        return [*kinds, loader.num_workers, loader.batch_size or 0, loader.pin_memory, digest.hexdigest()]

    def _copy(self, batch):
        """Return a copy of a batch, and which of its tensors are in page-locked memory."""
        pinned = []

        def copied(tensor):
            if type(tensor) is not self.torch.Tensor or tensor.device.type != "cpu":
                raise TypeError("only tensors in host memory are kept")
            if tensor.layout != self.torch.strided or tensor.requires_grad:
                raise TypeError("only plain tensors are kept")
            self.bytes += tensor.nbytes
            if self.bytes > MAX_BYTES:
                raise MemoryError("the batches are too large")
            pinned.append(tensor.is_pinned())
            return tensor.clone(memory_format=self.torch.preserve_format)

        return _mapped(self.torch, batch, copied), pinned

    # Random number generators

    def _states(self, loader):
        """Return the states of the generators that loading may use."""
        generators = self._generators(loader)
        tensors = [self.torch.get_rng_state(), *(each.get_state() for each in generators.values())]
        version, numbers, gauss = random.getstate()
        legacy = None
        numpys = random_numbers.numpys()
        if numpys is not None:
            name, keys, *rest = numpys.get_state(legacy=True)
            legacy = [name, keys.tolist(), *rest]
        return [tensors, list(generators), [version, list(numbers), gauss], legacy]

    def restore(self, loader, states):
        """Set the generators to the states that loading left."""
        tensors, places, (version, numbers, gauss), legacy = states
        self.torch.set_rng_state(tensors[0])
        generators = self._generators(loader)
        for place, state in zip(places, tensors[1:], strict=True):
            # Some samplers create their generator when they are iterated, with a seed of their own: if no
            # iteration has begun, there is none.
            if place in generators:
                generators[place].set_state(state)
        random.setstate((version, tuple(numbers), gauss))
        if legacy is not None:
            name, keys, *rest = legacy
            # Loading may have been the first to use it.
            importlib.import_module("numpy.random").set_state((name, keys, *rest))

    def _generators(self, loader):
        """Return the generators of a loader and its samplers by place, each once."""
        found = {}
        batches = loader.batch_sampler
        parts = {
            "loader": loader,
            "sampler": loader.sampler,
            "batches": batches,
            "sampler of batches": getattr(batches, "sampler", None),
        }
        for place, part in parts.items():
            generator = getattr(part, "generator", None)
            known = found.values()
            if isinstance(generator, self.torch.Generator) and all(generator is not each for each in known):
                found[place] = generator
        return found


def _is_pipe(dataset):
    datapipes = sys.modules.get("torch.utils.data.datapipes.datapipe")
    return datapipes is not None and isinstance(dataset, (datapipes.IterDataPipe, datapipes.MapDataPipe))


def _mapped(torch, value, change):
    """Return plain containers with their tensors replaced."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(torch, each, change) for each in value)
    if type(value) is dict:
        return {key: _mapped(torch, each, change) for key, each in value.items()}
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise TypeError("only tensors and plain containers are kept")


def _iterator_class(base):
    """Return the class of iterators over kept batches."""

    class KeptIterator(base):
        def __init__(self, loader, known, kept):
            super().__init__(loader)
            self._prefetch_factor = loader.prefetch_factor
            self.loader, self.known, self.kept = loader, known, kept
            self.place = 0
            self.took = None
            self.own = None
            kept.restore(loader, known["after"])

        def _next_data(self):
            batches = self.known["batches"]
            if self.own is None and self.place < len(batches):
                entry = batches[self.place]
                self.place += 1
                self.took = entry["took"]
                self.kept.restore(self.loader, entry["after"])
                torch, flags = self.kept.torch, iter(entry["pinned"])
                return _mapped(torch, entry["batch"], lambda each: each.pin_memory() if next(flags) else each)
            if self.own is None and self.known["ended"]:
                raise StopIteration
            self.took = None
            return self._load()._next_data()

        def _load(self):
            """Return the loader's own iterator, after the batches that were kept."""
            if self.own is None:
                self.kept.serves = False
                self.kept.restore(self.loader, self.known["before"])
                self.own = self.loader._get_iterator()
                for _ in range(self.place):
                    self.own._next_data()
            return self.own

    return KeptIterator
