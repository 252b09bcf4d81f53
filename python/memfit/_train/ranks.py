"""Several processes that train one model: coming to one decision, and exchanging gradients.

Gradients are exchanged after all ranks have said that their part of the window ran, so that a rank whose
memory did not suffice is never waited for in a collective that it does not come to. Where models have
collectives of their own, all ranks run equally many parts, and one that is stuck there is got out.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memfit import _core

from .losses import Books, Losses
from .parameters import Parameters
from .stuck import PeerFailed, Rescue, stand_in_front

Turn = tuple[int, int, bool, bool]
# A part that counts nothing, run for the sake of other ranks.
IDLE: Turn = (0, 1, False, False)

_NOTHING = contextlib.nullcontext()

# Gradients travel together up to this size.
_BUCKET = 32 << 20


# What a rank tells the others: which step it takes next, and so many numbers with it.
COLLECTIVE, NO_MORE, MORE, AGREE = range(4)
_NUMBERS = 13


class Alone:
    """One process: nobody to ask."""

    world = 1
    rank = 0
    # Whether ranks meet inside a part, and not only between windows.
    inside = False
    # Whether ranks have the same batch, and have to cut it alike.
    alike = False
    # Whether a window can be run again after a failure.
    can_retry = True

    @property
    def meets(self) -> bool:
        """Whether they do, or were seen to."""
        return False

    def begin(self) -> None:
        """A window begins."""

    def parts(
        self,
        controller: _core.Controller,
        batch: int,
        space: Callable[[], Any],
        shape: str,  # noqa: ARG002
    ) -> Iterator[Turn]:
        """The parts of a batch of the window, as the controller cuts it: where each begins and ends, whether
        the allocator's cache is to be emptied before it, and whether what it needs is to be looked at. What
        `shape` tells apart may have tensors of different sizes.
        """
        while (turn := controller.next(batch, space)) is not None:
            yield turn

    def failed(self, batch: int, size: int) -> None:
        """This rank stops in the middle of a part of so many samples."""

    def leave(self) -> None:
        """This rank does not come to what is exchanged between parts."""

    def watching(self, inside: bool = True) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """What runs in here, inside a part or between them, may wait for other ranks."""
        return _NOTHING

    def gave_up(self, error: Exception) -> bool:  # noqa: ARG002
        """Whether an error only says that another rank did not come."""
        return False

    def roll_back(self) -> None:
        """The window's parts are dropped."""

    def correction(self, factor: float) -> float:
        """What gradients are multiplied by before they are exchanged, where a mean needs this factor."""
        return factor

    def books(self, losses: Losses) -> list[Books]:
        """What all ranks counted of several losses; nothing where there is one."""
        return [(losses.counts, losses.divisors)] if losses.counts else []

    def clip(self, parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
        """Clip the gradients; the norm that they had."""
        return nn.utils.clip_grad_norm_(parameters, most)

    def close(self) -> None:
        """Undo what was set."""

    def agree(
        self,
        controller: _core.Controller,
        outcome: Any,
        parameters: Parameters,  # noqa: ARG002
        several: bool = False,  # noqa: ARG002
    ) -> tuple[str, float]:
        """What all ranks do, and what all counted; `several` is whether this one has several losses."""
        return ("step", controller.counted) if outcome == "done" else (outcome, 0.0)

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:
        """Sum the gradients of all ranks."""


class Together(Alone):
    """Ranks with a copy of the model each."""

    def __init__(self, group: Any, timeout: float, broadcast_buffers: bool, model: nn.Module) -> None:
        self._group = group
        self.world = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self._ranks = dist.get_process_group_ranks(group) if group is not None else None
        self._broadcast = broadcast_buffers
        # A channel that does not go through the device, and that gives up where a rank has died.
        self._side = dist.new_group(self._ranks, timeout=timedelta(seconds=timeout), backend="gloo")
        self._missing = False
        # Whether any rank has several losses.
        self._several = False
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._rescue = Rescue(group, self._side, device, timeout)
        self._undo = stand_in_front()
        # Layers that take their statistics over all ranks meet in each part.
        self.inside = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
        self._fresh = True
        # What each rank's part is like, in a number.
        self._shapes: list[float] = []
        # Where this rank failed: in which batch of the window, and with how many samples.
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
        # All ranks run equally many parts: one that has none left runs a part that counts nothing.
        while True:
            turn = controller.next(batch, space)
            if not self._run_another(controller, turn, shape):
                return
            yield IDLE if turn is None else turn

    def _run_another(self, controller: _core.Controller, turn: Turn | None, shape: str) -> bool:
        """Before a part, of which this rank may have none left: whether one is run."""
        start, stop, *_ = IDLE if turn is None else turn
        mark = float(zlib.crc32(f"{shape}:{stop - start}".encode()))
        said = self._tell(NO_MORE if turn is None else MORE, controller.divisor, mark)
        states = [int(row[0]) for row in said]
        self._shapes = [row[2] for row in said]
        if AGREE in states:
            raise PeerFailed("another rank failed")
        if COLLECTIVE in states:
            raise RuntimeError(
                f"rank {states.index(COLLECTIVE)} is in a collective that this rank does not come to\n"
                "hint: all ranks have to run the same modules in the same order"
            )
        if self._fresh:
            # Gradients may be exchanged in the backward, so all ranks divide by the same from the start.
            controller.divide_by(sum(row[1] for row in said))
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
        flags = (missing, self._rescue.broken, self.meets, outcome == "lost")
        status = controller.status("over" if outcome == "lost" else outcome)
        mine = [
            *status,
            *map(float, flags),
            *map(float, self._failed),
            float(several),
            parameters.mark(),
        ]
        rows = self._tell(AGREE, *mine)
        while any(row[0] != AGREE for row in rows):
            # A rank that was about to run another part has heard of it, and comes here.
            rows = self._tell(AGREE, *mine)
        self._rescue.begin()
        if len({row[12] for row in rows}) > 1:
            raise RuntimeError(
                "the optimizer has parameters that are not in the model, and they are not the same on all ranks: their "
                "gradients cannot be those of all ranks' batches\n"
                "hint: seed all ranks alike before they are made, or broadcast them from one rank; what each rank has for "
                "itself needs an optimizer and a step of its own"
            )
        self._missing = any(row[5] for row in rows)
        self._several = any(row[11] for row in rows)
        self.inside = self.inside or any(row[7] for row in rows)
        verdict, said = _core.Controller.agree([row[1:5] for row in rows], self.rank)
        broken = any(row[6] for row in rows)
        if verdict == "over":
            # Not a rank that only lost another one.
            over = controller.status("over")[2]
            culprits = [rank for rank, row in enumerate(rows) if row[3] == over and not row[8]]
            said = float(culprits[0]) if culprits else said
            if broken:
                self._rescue.abort()
        elif broken:
            self._rescue.mend()
        if verdict == "again" and self.alike:
            self._fail_with(controller, [(int(row[9]), int(row[10])) for row in rows])
        self._failed = (0, 0)
        return verdict, said

    def _fail_with(self, controller: _core.Controller, failures: list[tuple[int, int]]) -> None:
        """What did not fit on one rank is not tried on those that have the same batch either."""
        for batch, size in {one for one in failures if one[1]} - {self._failed}:
            controller.failed(batch, size, ["torch.OutOfMemoryError"], "CUDA out of memory.", 0, 0)

    @property
    def meets(self) -> bool:
        return self.inside or self._rescue.met

    def _tell(self, *numbers: float) -> list[list[float]]:
        """Tell the other ranks, and hear what each of them told."""
        mine = torch.tensor([*numbers, *[0.0] * (_NUMBERS - len(numbers))], dtype=torch.float64)
        told = [torch.empty_like(mine) for _ in range(self.world)]
        try:
            self._rescue.tell(dist.all_gather(told, mine, group=self._side, async_op=True))
        except RuntimeError as error:
            raise RuntimeError(
                "another rank did not say how its part of the step went: it has died, or it calls `step` less often\n"
                "hint: look at the other ranks' logs; every rank has to call `step` for every batch"
            ) from error
        return [row.tolist() for row in told]

    def close(self) -> None:
        self._rescue.close()
        self._undo()

    def books(self, losses: Losses) -> list[Books]:
        if not self._several:
            return []
        told: list[Any] = [None] * self.world
        dist.all_gather_object(told, (losses.counts, losses.divisors), group=self._side)
        return told

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if self._missing:
            # A parameter that one rank did not use has a gradient of zero there, if another rank did use it.
            used = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.uint8)
            dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self._side)
            trained = [parameter for parameter, one in zip(trained, used.tolist(), strict=True) if one]
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=self._group)
            pieces = flat.split([gradient.numel() for gradient in bucket])
            for gradient, piece in zip(bucket, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))
        if self._broadcast:
            first = self._ranks[0] if self._ranks else 0
            for buffer in buffers:
                dist.broadcast(buffer, first, group=self._group)


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Gradients of one type and device at a time, up to a size."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for gradient in gradients:
        kind = (gradient.dtype, gradient.device)
        if sizes.get(kind, 0) + gradient.nbytes > _BUCKET and open_ones.get(kind):
            yield open_ones.pop(kind)
            sizes[kind] = 0
        open_ones.setdefault(kind, []).append(gradient)
        sizes[kind] = sizes.get(kind, 0) + gradient.nbytes
    yield from open_ones.values()


def ranks_of(model: nn.Module, group: Any, timeout: float) -> tuple[nn.Module, Alone]:
    """The module to compute with, and the ranks that have it as well."""
    if not (dist.is_available() and dist.is_initialized()):
        return model, Alone()
    if isinstance(model, nn.parallel.DistributedDataParallel):
        # Its hooks only act in forwards that went through it: the module inside computes, and `reduce`
        # exchanges.
        return model.module, Together(
            model.process_group if group is None else group, timeout, model.broadcast_buffers, model.module
        )
    # What follows FSDP2 is built on what stands here.
    from .sharded import is_sharded, sharded

    if is_sharded(model):
        return model, sharded(model, group, timeout)
    if group is not None and dist.get_world_size(group) > 1:
        return model, Together(group, timeout, True, model)
    return model, Alone()
