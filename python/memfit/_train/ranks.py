"""Several processes that train one model: coming to one decision, and exchanging gradients.

Gradients are exchanged after all ranks have said that their part of the window ran, so that a rank whose memory did not
suffice is never waited for in a collective that it does not come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memfit import _core

Turn = tuple[int, int, bool, bool]
# A part that counts nothing, run for the sake of other ranks.
IDLE: Turn = (0, 1, False, False)

# Gradients travel together up to this size.
_BUCKET = 32 << 20


class PeerFailed(RuntimeError):  # noqa: N818
    """Another rank did not come to a collective: raised in its place, and never seen by the user."""


class Alone:
    """One process: nobody to ask."""

    world = 1
    # Whether ranks meet inside a part, and not only between windows.
    inside = False
    # Whether a window can be run again after a failure.
    can_retry = True

    def begin(self) -> None:
        """A window begins."""

    def parts(self, controller: _core.Controller, batch: int, space: Callable[[], Any]) -> Iterator[Turn]:
        """The parts of a batch of the window, as the controller cuts it: where each begins and ends, whether the allocator's
        cache is to be emptied before it, and whether what it needs is to be looked at."""
        while (turn := controller.next(batch, space)) is not None:
            yield turn

    def failed(self) -> None:
        """This rank stops in the middle of a part."""

    def roll_back(self) -> None:
        """The window's parts are dropped."""

    def correction(self, controller: _core.Controller, total: float) -> float:
        """What gradients are multiplied by, before they are exchanged."""
        return controller.correction(total)

    def close(self) -> None:
        """Undo what was set."""

    def agree(self, controller: _core.Controller, outcome: Any, model: nn.Module) -> tuple[str, float]:  # noqa: ARG002
        """What all ranks do, and what all counted."""
        return ("step", controller.counted) if outcome == "done" else (outcome, 0.0)

    def reduce(self, parameters: Iterable[nn.Parameter], buffers: Iterable[torch.Tensor]) -> None:
        """Sum the gradients of all ranks."""


class Together(Alone):
    """Ranks with a copy of the model each."""

    def __init__(self, group: Any, timeout: float, broadcast_buffers: bool) -> None:
        self._group = group
        self.world = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        self._ranks = dist.get_process_group_ranks(group) if group is not None else None
        self._broadcast = broadcast_buffers
        # A channel that does not go through the device, and that gives up where a rank has died.
        self._side = dist.new_group(self._ranks, timeout=timedelta(seconds=timeout), backend="gloo")
        self._missing = False

    def agree(self, controller: _core.Controller, outcome: Any, model: nn.Module) -> tuple[str, float]:
        missing = any(parameter.grad is None for parameter in model.parameters() if parameter.requires_grad)
        rows = self._tell([*controller.status(outcome), float(missing)])
        self._missing = any(row[-1] for row in rows)
        return _core.Controller.agree([row[:-1] for row in rows], self._rank)

    def _tell(self, numbers: list[float]) -> list[list[float]]:
        """Tell the other ranks, and hear what each of them told."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        told = [torch.empty_like(mine) for _ in range(self.world)]
        try:
            dist.all_gather(told, mine, group=self._side)
        except RuntimeError as error:
            raise RuntimeError(
                "another rank did not say how its part of the step went: it has died, or it calls `step` less often\n"
                "hint: look at the other ranks' logs; every rank has to call `step` for every batch"
            ) from error
        return [row.tolist() for row in told]

    def reduce(self, parameters: Iterable[nn.Parameter], buffers: Iterable[torch.Tensor]) -> None:
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
        # Its hooks only act in forwards that went through it: the module inside computes, and `reduce` exchanges.
        return model.module, Together(
            model.process_group if group is None else group, timeout, model.broadcast_buffers
        )
    # What follows FSDP2 is built on what stands here.
    from .sharded import is_sharded, sharded

    if is_sharded(model):
        return model, sharded(model, group, timeout)
    if group is not None and dist.get_world_size(group) > 1:
        return model, Together(group, timeout, broadcast_buffers=True)
    return model, Alone()
