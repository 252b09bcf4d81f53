"""Spreads a single-process script over several ranks, of which this process is one.

The plan's degrees are applied to the model by the code that applies them in training (`memfit_parallel`,
through the lever `shard`), on the virtual device's own collectives. A training library applies them itself.
Each batch is cut to this rank's share before it is divided into micro-batches.
"""

import functools
import os

from . import lone


class Spread:
    """This rank's place in the training."""

    def __init__(self, setup, degrees):
        self.rank = setup["rank"]
        self.per_machine = setup["per_machine"]
        self._degrees = degrees
        self.armed = False

    @functools.cached_property
    def parallel(self):
        """The plan's degrees. Importing them imports torch, which a script with a model has done."""
        from memfit_parallel import Parallel

        return Parallel.from_table(self._degrees)

    def arm(self):
        """Let this process represent its rank, before the model is spread."""
        if self.armed:
            return
        self.armed = True
        machine = self.rank // self.per_machine
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.parallel.world),
            # The process sees one GPU, as with one visible device per process.
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE=str(self.per_machine),
            GROUP_RANK=str(machine),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29500",
            TORCH_NCCL_ENABLE_MONITORING="0",
            MEMFIT_LONE_RANK=f"{self.rank}/{self.parallel.world}",
        )
        import torch.distributed.distributed_c10d as c10d

        lone.stand_in(self.rank, self.parallel.world, c10d, self.per_machine)

    def apply(self, planned, model, optimizers):
        """Apply the plan's levers, the spread among them."""
        self.arm()
        planned._apply(optimizers, None)
        target, notes = planned.target, planned.session.notes
        if target.model is not model:
            redirect(model, target.model, planned.round.ends)
            target.model = model
        if notes is not None:
            # The shards have other memory than the parameters that were noted.
            notes.all_of(model)

    def bounds(self, samples):
        """Return the start and end of this rank's share of a batch."""
        return _share(samples, self.parallel.part_of(self.rank), self.parallel.batches)


class ByLibrary:
    """This rank's place in a training that the script's library distributes."""

    def __init__(self, setup):
        library = setup["library"]
        self.rank, self.ranks = setup["rank"], library["ranks"]
        self.shards, self.reshards = library["shards"], library["reshards"]
        self.blocks = frozenset(library["blocks"])
        # `True` if the library's own batch size is a rank's share.
        self.has_own_share = False

    def bounds(self, samples):
        """Return the start and end of this rank's share of a batch."""
        return (0, samples) if self.has_own_share else _share(samples, self.rank, self.ranks)

    def whole(self, samples):
        """Return the samples of a batch of all ranks, from those in a batch of the loader."""
        return samples * self.ranks if self.has_own_share else samples


def _share(samples, part, parts):
    """Return the start and end of one of the parts of a batch."""
    from memfit_parallel import cut

    start, stop = cut(samples, part, parts)
    # A rank for which no sample is left takes part with one that counts nothing.
    return (start, stop) if start < stop else (max(start - 1, 0), max(start, 1))


def redirect(model, wrapper, ends):
    """Let calls of a model run its wrapper (DistributedDataParallel), which a script without it cannot call.
    `ends()` says if a micro-batch is the last of its step, whose backward pass exchanges the gradients.
    """
    inside = False
    own = type(model)._call_impl

    def call(*args, **kwargs):
        nonlocal inside
        if inside:
            return own(model, *args, **kwargs)
        inside = True
        try:
            if hasattr(wrapper, "require_backward_grad_sync"):
                wrapper.require_backward_grad_sync = bool(ends())
            return wrapper(*args, **kwargs)
        finally:
            inside = False

    model.__dict__["_call_impl"] = call
