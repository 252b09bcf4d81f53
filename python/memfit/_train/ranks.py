"""Several processes that train one model: agreeing on each step, and exchanging gradients.

Gradients are exchanged only after all ranks have confirmed that their part of the window ran, so no rank
waits in a collective for one that ran out of memory. If the model runs collectives itself, all ranks run
equally many micro-batches, and a rank that is stuck in a collective is freed.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from memfit import _core

from .losses import LossCounts, Losses
from .parameters import Parameters
from .stuck import PeerFailed, Rescue, stand_in_front

Turn = tuple[int, int, bool, bool]
# A micro-batch that counts nothing, run so that other ranks do not wait.
IDLE: Turn = (0, 1, False, False)

_NO_CONTEXT = contextlib.nullcontext()

DIFFERENT_BATCHES = (
    "the ranks were given different batches, but under a parallel plan each rank's loader has to yield the same "
    "global batch, from which memfit takes the rank's part\n"
    "hint: leave out `DistributedSampler`; seed what shuffles or augments the same on all ranks"
)

# Maximum size of an all-reduce bucket.
_MAX_BUCKET_BYTES = 32 << 20


# The state that a rank reports to the others: the first value of each message. Ranks in different states
# receive each other's messages, so all messages are equally long, padded with zeros.
COLLECTIVE, NO_MORE, MORE, AGREE = range(4)


class _Turn(NamedTuple):
    """Message in the states `MORE` and `NO_MORE`: a rank is about to run a micro-batch, or has none left."""

    state: float
    divisor: float
    # Checksum of the shapes of the micro-batch's samples.
    shapes: float
    batches_seen: float


class _Outcome(NamedTuple):
    """Message in the state `AGREE`: the outcome of a rank's window. Flags are 0 or 1."""

    state: float
    # The status of the rank's controller (`Controller.status`).
    window: float
    attempt: float
    outcome: float
    weight: float
    # A trained parameter has no gradient.
    is_missing: float
    # A collective was abandoned, so the process groups need new connections.
    is_broken: float
    # Collectives ran inside a micro-batch.
    meets: float
    # The rank failed only because another one did.
    is_lost: float
    # Position at which the rank failed: the batch of the window, and the number of samples.
    failed_batch: float
    failed_size: float
    has_several_losses: float
    # Checksum of the optimizer's parameters outside the model.
    parameters: float
    batches_seen: float

    @property
    def status(self) -> list[float]:
        """The status, as `Controller.agree` takes it."""
        return [self.window, self.attempt, self.outcome, self.weight]


_VALUES_PER_MESSAGE = len(_Outcome._fields)


class SingleRank:
    """A single process, with no other ranks."""

    world = 1
    rank = 0
    # Set if ranks run collectives inside a micro-batch, and not only between windows.
    inside = False
    # Set if ranks share the same batch and have to divide it equally.
    alike = False
    # Set if ranks have other layers, and divide a batch into the micro-batches of a pipeline.
    pipes = False
    # Set if a window can run again after a failure.
    can_retry = True
    # A checksum of the window's batches, if all ranks are given the same ones.
    batches_seen = 0.0

    @property
    def meets(self) -> bool:
        """`True` if ranks run collectives inside a micro-batch, or were seen to."""
        return False

    def begin(self) -> None:
        """Start a window."""

    def parts(
        self,
        controller: _core.Controller,
        batch: int,
        space: Callable[[], Any],
        shape: str,  # noqa: ARG002
    ) -> Iterator[Turn]:
        """Yield the micro-batches of a batch as the controller divides it: start, end, a flag to empty the
        allocator's cache before it, and a flag to measure its memory. Batches with a different `shape` may
        have tensors of different sizes.
        """
        while (turn := controller.next(batch, space)) is not None:
            yield turn

    def failed(self, batch: int, size: int) -> None:
        """Record that this rank failed in a micro-batch of `size` samples."""

    def leave(self) -> None:
        """Tell the other ranks that this one skips the collectives between micro-batches."""

    def watching(self, inside: bool = True) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Return a context whose code may wait for other ranks; `inside` a micro-batch, or between them."""
        return _NO_CONTEXT

    def gave_up(self, error: Exception) -> bool:  # noqa: ARG002
        """Return `True` if an error only means that another rank did not join a collective."""
        return False

    def roll_back(self) -> None:
        """Drop the window's micro-batches."""

    def correction(self, factor: float) -> float:
        """Return the factor by which gradients are multiplied before the exchange so that in effect their sum
        over all ranks is multiplied by `factor`. The two differ if the exchange itself averages (FSDP2).
        """
        return factor

    def books(self, losses: Losses) -> list[LossCounts]:
        """Return the counts of several losses on all ranks; empty for a single loss."""
        return [(losses.counts, losses.divisors)] if losses.counts else []

    def clip(self, parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
        """Clip the gradients and return their previous norm."""
        return nn.utils.clip_grad_norm_(parameters, most)

    def close(self) -> None:
        """Undo all changes to PyTorch."""

    def agree(
        self,
        controller: _core.Controller,
        outcome: Any,
        parameters: Parameters,  # noqa: ARG002
        several: bool = False,  # noqa: ARG002
    ) -> tuple[str, float]:
        """Return the decision of all ranks and their total count; `several` is true if this rank has several
        losses.
        """
        return ("step", controller.counted) if outcome == "done" else (outcome, 0.0)

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:
        """Sum the gradients over all ranks."""


class ReplicatedRanks(SingleRank):
    """Ranks that each have a copy of the model."""

    def __init__(self, group: Any, timeout: float, broadcast_buffers: bool, model: nn.Module) -> None:
        self._group = group
        self.world = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self._ranks = dist.get_process_group_ranks(group) if group is not None else None
        self._broadcast = broadcast_buffers
        # A channel over the CPU, with a timeout in case a rank has died.
        self._side = dist.new_group(self._ranks, timeout=timedelta(seconds=timeout), backend="gloo")
        self._missing = False
        # Set if any rank has several losses.
        self._several = False
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._rescue = Rescue(group, self._side, device, timeout)
        self._undo = stand_in_front()
        # Layers that compute their statistics over all ranks run a collective in each micro-batch.
        self.inside = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
        self._fresh = True
        # Checksums of the sample shapes of each rank's micro-batch.
        self._shapes: list[float] = []
        # Position at which this rank failed: the batch of the window, and the number of samples.
        self._failed: tuple[int, int] = (0, 0)

    def begin(self) -> None:
        self._fresh = True
        self._rescue.begin()
        self._rescue.watch()

    def parts(
        self, controller: _core.Controller, batch: int, space: Callable[[], Any], shape: str
    ) -> Iterator[Turn]:
        if not self.inside:
            yield from super().parts(controller, batch, space, shape)
            return
        # All ranks run equally many micro-batches: one that has none left runs a micro-batch that counts
        # nothing.
        while True:
            turn = controller.next(batch, space)
            if not self._run_another(controller, turn, shape):
                return
            yield IDLE if turn is None else turn

    def _run_another(self, controller: _core.Controller, turn: Turn | None, shape: str) -> bool:
        """Return `True` if another micro-batch is run on all ranks, even if this one has none left."""
        start, stop, *_ = IDLE if turn is None else turn
        mark = float(zlib.crc32(f"{shape}:{stop - start}".encode()))
        state = NO_MORE if turn is None else MORE
        rows = self._exchange_values(*_Turn(state, controller.divisor, mark, self.batches_seen))
        states = [int(row[0]) for row in rows]
        turns = [_Turn(*row[: len(_Turn._fields)]) for row in rows]
        self._shapes = [turn.shapes for turn in turns]
        if AGREE in states:
            raise PeerFailed("another rank failed")
        if COLLECTIVE in states:
            raise RuntimeError(
                f"rank {states.index(COLLECTIVE)} is in a collective that this rank does not call\n"
                "hint: all ranks have to run the same modules in the same order"
            )
        _refuse_different_batches([turn.batches_seen for turn in turns])
        if self._fresh:
            # Gradients may be exchanged in the backward pass, so all ranks use the same divisor from the
            # start.
            controller.divide_by(sum(turn.divisor for turn in turns))
            self._fresh = False
        return MORE in states

    def failed(self, batch: int, size: int) -> None:
        self._failed = batch, size
        self._rescue.leave(surely=self.meets)

    def leave(self) -> None:
        self._rescue.leave()

    def watching(self, inside: bool = True) -> contextlib.AbstractContextManager[None]:
        return self._rescue.watching(inside)

    def gave_up(self, error: Exception) -> bool:
        return self._rescue.gave_up(error)

    def roll_back(self) -> None:
        self._fresh = True

    def agree(
        self, controller: _core.Controller, outcome: Any, parameters: Parameters, several: bool = False
    ) -> tuple[str, float]:
        parameters.look()
        missing = any(each.grad is None for each in parameters.all if each.requires_grad)
        window, attempt, ended, weight = controller.status("over" if outcome == "lost" else outcome)
        mine = _Outcome(
            state=AGREE,
            window=window,
            attempt=attempt,
            outcome=ended,
            weight=weight,
            is_missing=missing,
            is_broken=self._rescue.broken,
            meets=self.meets,
            is_lost=outcome == "lost",
            failed_batch=self._failed[0],
            failed_size=self._failed[1],
            has_several_losses=several,
            parameters=parameters.checksum(),
            batches_seen=self.batches_seen,
        )
        rows = self._exchange_values(*mine)
        while any(row[0] != AGREE for row in rows):
            # A rank that was about to run another micro-batch has received the message and joins here.
            rows = self._exchange_values(*mine)
        outcomes = [_Outcome(*row) for row in rows]
        self._rescue.begin()
        if len({each.parameters for each in outcomes}) > 1:
            raise RuntimeError(
                "the optimizer has parameters outside the model that differ between ranks, so their "
                "gradients cannot be summed over ranks\n"
                "hint: seed all ranks equally before the parameters are created, or broadcast them from one "
                "rank; parameters that differ on purpose need their own optimizer and step"
            )
        _refuse_different_batches([each.batches_seen for each in outcomes])
        self._missing = any(each.is_missing for each in outcomes)
        self._several = any(each.has_several_losses for each in outcomes)
        self.inside = self.inside or any(each.meets for each in outcomes)
        verdict, total = _core.Controller.agree([each.status for each in outcomes], self.rank)
        broken = any(each.is_broken for each in outcomes)
        if verdict == "over":
            # Excludes ranks that failed only because of another one.
            over = controller.status("over")[2]
            culprits = [
                rank for rank, each in enumerate(outcomes) if each.outcome == over and not each.is_lost
            ]
            total = float(culprits[0]) if culprits else total
            if broken:
                self._rescue.abort()
        elif broken:
            self._rescue.mend()
        if verdict == "again" and self.alike:
            failures = [(int(each.failed_batch), int(each.failed_size)) for each in outcomes]
            self._fail_with(controller, failures)
        self._failed = (0, 0)
        return verdict, total

    def _fail_with(self, controller: _core.Controller, failures: list[tuple[int, int]]) -> None:
        """Apply failures on other ranks that share this batch, so that their micro-batch size is not tried
        again here.
        """
        for batch, size in {one for one in failures if one[1]} - {self._failed}:
            controller.failed(batch, size, ["torch.OutOfMemoryError"], "CUDA out of memory.", 0, 0)

    @property
    def meets(self) -> bool:
        return self.inside or self._rescue.met

    def _exchange_values(self, *numbers: float) -> list[list[float]]:
        """Send values to the other ranks and return those of all ranks."""
        mine = torch.tensor([*numbers, *[0.0] * (_VALUES_PER_MESSAGE - len(numbers))], dtype=torch.float64)
        values = [torch.empty_like(mine) for _ in range(self.world)]
        try:
            self._rescue.wait_for_message(dist.all_gather(values, mine, group=self._side, async_op=True))
        except RuntimeError as error:
            raise RuntimeError(
                "another rank did not report the result of its step: it has died, or calls `step` less "
                "often\n"
                "hint: look at the other ranks' logs; every rank has to call `step` for every batch"
            ) from error
        return [row.tolist() for row in values]

    def close(self) -> None:
        self._rescue.close()
        self._undo()

    def books(self, losses: Losses) -> list[LossCounts]:
        if not self._several:
            return []
        counts: list[Any] = [None] * self.world
        dist.all_gather_object(counts, (losses.counts, losses.divisors), group=self._side)
        return counts

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._add_up(trained, self._group, self._side)
        if self._broadcast:
            first = self._ranks[0] if self._ranks else 0
            for buffer in buffers:
                dist.broadcast(buffer, first, group=self._group)

    def _add_up(self, parameters: Sequence[torch.Tensor], group: Any, side: Any) -> None:
        """Add the gradients of parameters over a group's ranks; `side` is the same group on the host. One
        that none of them used has none.
        """
        if self._missing:
            # A parameter that is unused on one rank but used on another has a zero gradient there.
            used = torch.tensor([each.grad is not None for each in parameters], dtype=torch.uint8)
            dist.all_reduce(used, op=dist.ReduceOp.MAX, group=side)
            parameters = [each for each, one in zip(parameters, used.tolist(), strict=True) if one]
            for each in parameters:
                if each.grad is None:
                    each.grad = torch.zeros_like(each)
        for bucket in _buckets([each.grad for each in parameters if each.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=group)
            pieces = flat.split([gradient.numel() for gradient in bucket])
            for gradient, piece in zip(bucket, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))


def _refuse_different_batches(seen: list[float]) -> None:
    """Raise an error on all ranks if they were given different batches where all should have the same."""
    if len(set(seen)) > 1:
        raise RuntimeError(DIFFERENT_BATCHES)


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group gradients of one type and device into buckets."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for gradient in gradients:
        kind = (gradient.dtype, gradient.device)
        if sizes.get(kind, 0) + gradient.nbytes > _MAX_BUCKET_BYTES and open_ones.get(kind):
            yield open_ones.pop(kind)
            sizes[kind] = 0
        open_ones.setdefault(kind, []).append(gradient)
        sizes[kind] = sizes.get(kind, 0) + gradient.nbytes
    yield from open_ones.values()


def ranks_of(model: nn.Module, group: Any, timeout: float) -> tuple[nn.Module, SingleRank]:
    """Return the module to compute with, and the ranks that share it."""
    if not (dist.is_available() and dist.is_initialized()):
        return model, SingleRank()
    if isinstance(model, nn.parallel.DistributedDataParallel):
        # DDP's hooks only run in forward passes of the wrapper: the inner module computes, and `reduce`
        # exchanges the gradients.
        return model.module, ReplicatedRanks(
            model.process_group if group is None else group, timeout, model.broadcast_buffers, model.module
        )
    # Imported here because these ranks derive from the classes above.
    from .pipelined import pipelined
    from .sharded import is_sharded, sharded

    of_pipeline = pipelined(model, group, timeout)
    if of_pipeline is not None:
        return model, of_pipeline

    if is_sharded(model):
        return model, sharded(model, group, timeout)
    if group is not None and dist.get_world_size(group) > 1:
        return model, ReplicatedRanks(group, timeout, True, model)
    return model, SingleRank()
