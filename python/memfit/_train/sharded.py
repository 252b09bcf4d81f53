"""FSDP2: ranks that run collectives inside the forward and backward passes.

A rank that fails inside a micro-batch leaves the others waiting in a collective. It therefore takes part in
the remaining collectives: their order is the same in each micro-batch, and is known from an earlier one. The
others discard the results, since all ranks run the window again. Normally this costs one message per
micro-batch on a CPU channel. Until the order is known, in the first micro-batch of each kind, every
collective is announced there before it begins, so that no rank enters one that another rank will not join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memfit import _core

from . import parallel
from .faults import forget
from .ranks import COLLECTIVE, ReplicatedRanks, Turn
from .stuck import PeerFailed


class _NoMesh:
    """Mesh of a parameter that is not distributed."""

    def size(self) -> int:
        return 1


_NO_MESH = _NoMesh()


@dataclass(frozen=True)
class _Collective:
    """One collective of a micro-batch, with everything another rank needs to take part in it."""

    comm: Any
    group: Any
    output: torch.Size
    input: torch.Size
    dtype: torch.dtype
    device: torch.device
    op: Any = None
    then_reduced: Any = None

    def take_part(self) -> None:
        """Take part with zeros, so that the other ranks can complete it."""
        output = torch.empty(self.output, dtype=self.dtype, device=self.device)
        inputs = torch.zeros(self.input, dtype=self.dtype, device=self.device)
        more = {} if self.op is None else {"op": self.op}
        _exchange(self.comm, output, inputs, self.group, more)
        if self.then_reduced is not None:
            dist.all_reduce(output, group=self.then_reduced)


class _AnnouncedCollective:
    """Wraps one kind of collective of a parameter group and announces each call."""

    def __init__(self, inner: Any, ranks: Sharded, then_reduced: Any = None) -> None:
        self._inner = inner
        self._ranks = ranks
        self._then_reduced = then_reduced

    def allocate(self, *args: Any, **keywords: Any) -> torch.Tensor:
        """Allocate its memory with the wrapped method."""
        return self._inner.allocate(*args, **keywords)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **keywords: Any
    ) -> Any:
        self._ranks.announce(
            _Collective(
                self._inner,
                group,
                output_tensor.shape,
                input_tensor.shape,
                input_tensor.dtype,
                input_tensor.device,
                keywords.get("op"),
                self._then_reduced() if self._then_reduced is not None else None,
            )
        )
        return _exchange(self._inner, output_tensor, input_tensor, group, keywords)


def _exchange(
    comm: Any, output: torch.Tensor, inputs: torch.Tensor, group: Any, keywords: dict[str, Any]
) -> Any:
    """Run a collective with FSDP2's own method, or on the CPU with an interruptible one."""
    if inputs.device.type != "cpu" or "op" not in keywords:
        return comm(output_tensor=output, input_tensor=inputs, group=group, **keywords)
    # gloo implements reduce-scatter as an all-reduce, but waiting for it cannot be interrupted.
    dist.all_reduce(inputs, op=keywords["op"], group=group)
    mine = inputs.view(dist.get_world_size(group), -1)[dist.get_rank(group)]
    output.copy_(mine.view_as(output))
    return None


class Sharded(ReplicatedRanks):
    """Ranks that each hold a shard of the parameters."""

    def __init__(self, model: nn.Module, group: Any, timeout: float, alike: bool) -> None:
        super().__init__(group, timeout, False, model)
        self.inside = True
        self.alike = alike
        self._unfollow = parallel.follow(self.announce) if alike else None
        self._model = model
        shards = [module for module in model.modules() if _is_sharded(module)]
        inner = {id(child) for module in shards for child in module.modules() if child is not module}
        self._roots = [module for module in shards if id(module) not in inner]
        self.can_retry = all(hasattr(root, "reset_iter_state") for root in self._roots)
        self._groups = [one for module in shards for one in _groups(module)]
        self._originals: list[tuple[Any, Any, Any]] = []
        for one in self._groups:
            # A model that is still wrapped by a step that was not closed is unwrapped first.
            gather, scatter = (getattr(comm, "_inner", comm) for comm in _comms(one) or ())
            self._originals.append((one, gather, scatter))
            one._all_gather_comm = _AnnouncedCollective(gather, self)
            one._reduce_scatter_comm = _AnnouncedCollective(scatter, self, lambda one=one: _replicas(one))
        # The collectives for each kind of micro-batch, and those seen so far in the current one.
        self._known: dict[tuple[Any, ...], list[Any]] = {}
        self._kind: tuple[Any, ...] = ()
        self._seen: list[Any] = []
        self._expected_order: list[Any] | None = None
        self._running = False

    def _run_another(self, controller: _core.Controller, turn: Turn | None, shape: str) -> bool:
        if self._running:
            self._known[self._kind] = self._seen
            self._running = False
        if not super()._run_another(controller, turn, shape):
            return False
        # FSDP2's collectives have the shapes of parameters; those within a layer depend on samples, too.
        shapes = tuple(self._shapes) if self.alike else ()
        self._kind = (*(bool(one.is_unsharded) for one in self._groups), *shapes)
        self._expected_order = self._known.get(self._kind)
        self._seen = []
        self._running = True
        return True

    def announce(self, collective: _Collective | parallel.Functional) -> None:
        """Record that a collective is about to begin."""
        if not self._running:
            return
        if self._expected_order is not None and (
            len(self._seen) >= len(self._expected_order)
            or self._expected_order[len(self._seen)] != collective
        ):
            # All ranks deviate from the known order at the same place: continue as if the order were unknown.
            self._known.pop(self._kind, None)
            self._expected_order = None
        if self._expected_order is None and any(
            row[0] != COLLECTIVE for row in self._exchange_values(COLLECTIVE)
        ):
            self._running = False
            raise PeerFailed("another rank failed")
        self._seen.append(collective)

    def failed(self, batch: int, size: int) -> None:
        self._failed = batch, size
        # The micro-batch was already abandoned because of another rank.
        if not self._running:
            return
        self._running = False
        self._reset()
        # The others learn of the failure before their next micro-batch, or, if the order is not known, before
        # their next collective.
        try:
            for collective in (self._expected_order or ())[len(self._seen) :]:
                collective.take_part()
        except Exception as error:
            forget(error)
            self._rescue.leave()

    def roll_back(self) -> None:
        super().roll_back()
        self._running = False
        self._reset()

    def correction(self, factor: float) -> float:
        # FSDP2 averages gradients over the ranks.
        return factor * self.world

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:
        whole = [parameter for parameter in parameters if not hasattr(parameter, "device_mesh")]
        if not any(parameter.requires_grad for parameter in whole):
            return
        gradients = [parameter.grad for parameter in whole if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self.world)
        # `agree` has already found out if any rank lacks a gradient.
        super().reduce(whole, buffers)

    def clip(self, parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
        return parallel.clip(parameters, most)

    def close(self) -> None:
        super().close()
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        for one, gather, scatter in self._originals:
            one._all_gather_comm, one._reduce_scatter_comm = gather, scatter

    def _reset(self) -> None:
        for root in self._roots:
            if self.can_retry and root._get_fsdp_state()._is_root:
                root.reset_iter_state()


def is_sharded(model: nn.Module) -> bool:
    """Return `True` if the model's parameters are sharded over several ranks."""
    return any(_is_sharded(module) for module in model.modules()) or parallel.largest_mesh(model) > 1


def sharded(model: nn.Module, group: Any, timeout: float) -> Sharded:
    """Return the ranks of a sharded model."""
    groups = [one for module in model.modules() if _is_sharded(module) for one in _groups(module)]
    if not all(_comms(one) is not None for one in groups):
        raise TypeError(
            "FSDP2's collectives cannot be tracked in this version of PyTorch, so a rank that runs out of "
            "memory would leave the others hanging\n"
            "hint: use PyTorch 2.9 or later"
        )
    world = dist.get_world_size(group)
    meshes = {one.mesh_info.mesh.size() for one in groups}
    largest = max(parallel.largest_mesh(model), *meshes, 1)
    sharded_ids = {id(one.sharded_param) for some in groups for one in some.fsdp_params}
    undistributed = [
        name
        for name, each in model.named_parameters()
        if id(each) not in sharded_ids and 1 < getattr(each, "device_mesh", _NO_MESH).size() < world
    ]
    if largest != world or len(meshes) > 1 or any(world % size for size in meshes) or undistributed:
        raise TypeError(
            f"the model is distributed over {largest} ranks, but the process group has {world}"
            + (
                f"; nothing exchanges the gradients of `{undistributed[0]}` between its copies"
                if undistributed
                else ""
            )
            + ": `memfit.Step` supports FSDP2 over all ranks (also with replicas), tensor parallelism over "
            "all ranks, and a mesh of both\n"
            "hint: `group=` names the ranks that share this model; `fully_shard` the whole model over the "
            "mesh's other dimension"
        )
    return Sharded(model, group, timeout, alike=meshes != {world})


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "set_requires_gradient_sync") and hasattr(module, "_get_fsdp_state")


def _groups(module: Any) -> Iterator[Any]:
    """Yield the parameter groups that a module gathers together."""
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        yield from state._fsdp_param_groups
    elif state._fsdp_param_group is not None:
        yield state._fsdp_param_group


def _comms(one: Any) -> tuple[Any, Any] | None:
    if not (hasattr(one, "_all_gather_comm") and hasattr(one, "_reduce_scatter_comm")):
        return None
    return one._all_gather_comm, one._reduce_scatter_comm


def _replicas(one: Any) -> Any:
    """Return the process group of the replicas that gradients are also summed over (HSDP), or `None`."""
    if not (one._is_hsdp and one.all_reduce_grads):
        return None
    return one._all_reduce_process_group
