"""This rank's share of each global batch, under a plan that memfit applied to a single-process script.

The script's loader yields the same global batch on every rank, and each rank takes its part of the samples.
So the global batch, the number of steps and the schedule stay those of the single-process script. The ranks'
generators are made equal when the step is created, and a checksum of each batch travels with the messages
that ranks exchange anyway.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memfit._parallel import ParallelError, cut

from .batches import Batch, visit
from .division import Division, Undividable, is_batch_norm
from .does_not_fit import SHARED, division_error
from .plans import Planned
from .ranks import SingleRank
from .tally import Tally

# Number of values of each tensor that enter a batch's checksum.
_CHECKSUM_VALUES = 256
# Values on a GPU are read for the first batch and for one in this many, since reading waits for the GPU.
_READ_EVERY = 64

_BATCH_NORM = "BatchNorm computes its statistics on {}, and not on the whole batch"


class Share:
    """The samples of each batch that this rank trains on."""

    def __init__(self, plan: Planned, model: nn.Module, device: torch.device, allow: str | None) -> None:
        assert plan.parallel is not None
        self.index, self.parts = plan.parallel.part_of(dist.get_rank()), plan.parallel.batches
        self._device = device
        self._batches = 0
        self._checksum = 0
        # The host's generator between the calls of a window, if the model draws from it.
        self._host: torch.Tensor | None = None
        piped = plan.parallel.pipeline > 1
        if (self.parts > 1 or piped) and any(is_batch_norm(each) for each in model.modules()):
            changes = _BATCH_NORM.format("each micro-batch" if piped else "each rank's share of the batch")
            if (allow or plan.allow) != "changes-training":
                raise ParallelError(
                    f"{changes}: this changes the training",
                    "convert the model with `nn.SyncBatchNorm.convert_sync_batchnorm` (on GPUs), use "
                    'GroupNorm, or permit it with `allow="changes-training"`',
                )
            plan.changed += (changes,)
        self.seed = _share_generators()

    def take(self, entry: Batch, opens: bool, division: Division, ranks: SingleRank) -> Batch:
        """Return this rank's part of a global batch, once the ranks' parts are known to add up to it. A rank
        for which no sample is left gets one that counts nothing, so that it takes part in what all ranks do.
        """
        taken = self._part(entry, opens)
        ranks.batches_seen = float(self._checksum)
        if taken.items < entry.items and not ranks.inside:
            # Dividing a batch over ranks changes the same as dividing it into micro-batches.
            try:
                taken.divided = division.require(entry, entry.items - 1)
            except Undividable as error:
                raise division_error(str(error), SHARED) from None
        return taken

    def _part(self, entry: Batch, opens: bool) -> Batch:
        self._checksum = zlib.crc32(self._describe(entry), 0 if opens else self._checksum)
        self._batches += 1
        if self.parts == 1:
            return entry
        start, stop = cut(entry.items, self.index, self.parts)
        if start == stop:
            taken = entry.same_rules(entry.part(0, 1, None), 1)
            taken.void = True
            return taken
        return entry.same_rules(entry.part(start, stop, None), stop - start)

    def _describe(self, entry: Batch) -> bytes:
        found: list[bytes] = [str(entry.items).encode()]
        reads = self._batches % _READ_EVERY == 0

        def describe(tensor: torch.Tensor) -> None:
            found.append(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.numel() == 0:
                return
            if tensor.device.type == "cpu" or (reads and tensor.device.type == "cuda"):
                flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
                some = flat[:: max(flat.numel() // _CHECKSUM_VALUES, 1)]
                found.append(repr(some[:_CHECKSUM_VALUES].tolist()).encode())

        visit(entry.value, describe)
        return b"".join(found)

    @contextmanager
    def drawing(self, window: int, opens: bool) -> Iterator[None]:
        """Return a context in which ranks with different samples draw different random numbers (dropout), and
        without affecting the generator that the loader draws from.

        The numbers follow from the first seed, the window and the rank's part, so a resumed training draws
        the same.
        """
        if self.parts == 1:
            yield
            return
        seed = zlib.crc32(f"{self.seed} {window} {self.index}".encode())
        if self._device.type == "cuda" and opens:
            torch.cuda.default_generators[self._device.index or 0].manual_seed(seed)
        outside = torch.get_rng_state()
        if opens or self._host is None:
            torch.default_generator.manual_seed(seed)
        else:
            torch.set_rng_state(self._host)
        try:
            yield
        finally:
            self._host = torch.get_rng_state()
            torch.set_rng_state(outside)

    def combine(self, tally: Tally) -> None:
        """Make a tally's losses those of the global batch, once all ranks have run it. A rank that runs out
        of memory meanwhile runs its part again, and then joins.
        """
        sums = tally.sums()
        if not sums:
            return
        both = torch.stack([each.double() for pair in sums.values() for each in pair])
        dist.all_reduce(both)
        tally.means = {name: both[2 * i] / both[2 * i + 1] for i, name in enumerate(sums)}


def _share_generators() -> int:
    """Give the host's generators the state of rank 0's, so that loaders yield the same order on all ranks.
    Return rank 0's seed.
    """
    numpy: Any = sys.modules.get("numpy")
    state = [
        torch.initial_seed(),
        torch.get_rng_state(),
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
    ]
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None
    backend = str(dist.get_backend())
    dist.broadcast_object_list(state, 0, device=None if "gloo" in backend else device)
    seed, host, python, of_numpy = state
    torch.set_rng_state(host)
    random.setstate(python)
    if numpy is not None and of_numpy is not None:
        numpy.random.set_state(of_numpy)
    return int(seed)
