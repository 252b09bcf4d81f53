"""FSDP2: ranks whose collectives stand inside the forward and the backward.

A rank that fails in the middle of a part leaves the others in a collective that it never comes to. So it
takes part in what is left of them: the order of collectives is the same in each part, and is known from a
part before. What the others compute from it is dropped, since all run the window again. The ordinary case
pays one message a part for it, on a channel that does not go through the device. As long as the order is not
known, in the first part of each kind, every collective is announced there before it begins, so that no rank
enters one to which another does not come.
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
from .ranks import COLLECTIVE, Together, Turn
from .stuck import PeerFailed


class _NoMesh:
    def size(self) -> int:
        return 1


_NO_MESH = _NoMesh()


@dataclass(frozen=True)
class _Collective:
    """One collective of a part, as far as another rank has to know it."""

    comm: Any
    group: Any
    output: torch.Size
    input: torch.Size
    dtype: torch.dtype
    device: torch.device
    op: Any = None
    then_reduced: Any = None

    def take_part(self) -> None:
        """Let the other ranks get through it."""
        output = torch.empty(self.output, dtype=self.dtype, device=self.device)
        inputs = torch.zeros(self.input, dtype=self.dtype, device=self.device)
        more = {} if self.op is None else {"op": self.op}
        _exchange(self.comm, output, inputs, self.group, more)
        if self.then_reduced is not None:
            dist.all_reduce(output, group=self.then_reduced)


class _Listening:
    """Stands in front of one kind of collective of a group of parameters."""

    def __init__(self, inner: Any, ranks: Sharded, then_reduced: Any = None) -> None:
        self._inner = inner
        self._ranks = ranks
        self._then_reduced = then_reduced

    def allocate(self, *args: Any, **keywords: Any) -> torch.Tensor:
        """Memory for it, as it was."""
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
    """Do a collective."""
    if inputs.device.type != "cpu" or "op" not in keywords:
        return comm(output_tensor=output, input_tensor=inputs, group=group, **keywords)
    # What gloo does to sum and scatter is to sum everywhere, but whoever waits for it does so without looking
    # up.
    dist.all_reduce(inputs, op=keywords["op"], group=group)
    mine = inputs.view(dist.get_world_size(group), -1)[dist.get_rank(group)]
    output.copy_(mine.view_as(output))
    return None


class Sharded(Together):
    """Ranks that each have a part of the parameters."""

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
            # A model that was wrapped before, by a step that was not closed, is unwrapped first.
            gather, scatter = (getattr(comm, "_inner", comm) for comm in _comms(one) or ())
            self._originals.append((one, gather, scatter))
            one._all_gather_comm = _Listening(gather, self)
            one._reduce_scatter_comm = _Listening(scatter, self, lambda one=one: _replicas(one))
        # Of each kind of part, the collectives; and of the part that runs, how many there were.
        self._known: dict[tuple[Any, ...], list[Any]] = {}
        self._kind: tuple[Any, ...] = ()
        self._seen: list[Any] = []
        self._ahead: list[Any] | None = None
        self._running = False

    def _run_another(self, controller: _core.Controller, turn: Turn | None, shape: str) -> bool:
        if self._running:
            self._known[self._kind] = self._seen
            self._running = False
        if not super()._run_another(controller, turn, shape):
            return False
        # Collectives of FSDP2 are about parameters, and those within a layer about samples as well.
        shapes = tuple(self._shapes) if self.alike else ()
        self._kind = (*(bool(one.is_unsharded) for one in self._groups), *shapes)
        self._ahead = self._known.get(self._kind)
        self._seen = []
        self._running = True
        return True

    def announce(self, collective: _Collective | parallel.Functional) -> None:
        """A collective is about to begin."""
        if not self._running:
            return
        if self._ahead is not None and (
            len(self._seen) >= len(self._ahead) or self._ahead[len(self._seen)] != collective
        ):
            # All ranks take another way than before, and at the same place: they go on as if it were the
            # first time.
            self._known.pop(self._kind, None)
            self._ahead = None
        if self._ahead is None and any(row[0] != COLLECTIVE for row in self._tell(COLLECTIVE)):
            self._running = False
            raise PeerFailed("another rank failed")
        self._seen.append(collective)

    def failed(self, batch: int, size: int) -> None:
        self._failed = batch, size
        # A part that another rank gave up is over for this one as well: it has been told.
        if not self._running:
            return
        self._running = False
        self._reset()
        # The others hear of it before their next part, or, where the order is not known, before their next
        # collective.
        try:
            for collective in (self._ahead or ())[len(self._seen) :]:
                collective.take_part()
        except Exception as error:
            forget(error)
            self._rescue.leave()

    def roll_back(self) -> None:
        super().roll_back()
        self._running = False
        self._reset()

    def correction(self, factor: float) -> float:
        # The exchange is a mean over the ranks.
        return factor * self.world

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:
        whole = [parameter for parameter in parameters if not hasattr(parameter, "device_mesh")]
        if not any(parameter.requires_grad for parameter in whole):
            return
        gradients = [parameter.grad for parameter in whole if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self.world)
        # Whether any rank misses a gradient has been told when the ranks agreed.
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
    """Whether this model's parameters lie on several ranks."""
    return any(_is_sharded(module) for module in model.modules()) or parallel.largest_mesh(model) > 1


def sharded(model: nn.Module, group: Any, timeout: float) -> Sharded:
    """The ranks of a model whose parameters lie on several of them."""
    groups = [one for module in model.modules() if _is_sharded(module) for one in _groups(module)]
    if not all(_comms(one) is not None for one in groups):
        raise TypeError(
            "with this PyTorch, FSDP2 does not let its collectives be followed, so a rank that runs out of memory would "
            "leave the others hanging\nhint: PyTorch 2.9 or later does"
        )
    world = dist.get_world_size(group)
    meshes = {one.mesh_info.mesh.size() for one in groups}
    largest = max(parallel.largest_mesh(model), *meshes, 1)
    covered = {id(one.sharded_param) for some in groups for one in some.fsdp_params}
    loose = [
        name
        for name, each in model.named_parameters()
        if id(each) not in covered and 1 < getattr(each, "device_mesh", _NO_MESH).size() < world
    ]
    if largest != world or len(meshes) > 1 or any(world % size for size in meshes) or loose:
        raise TypeError(
            f"the model lies on {largest} ranks, and {world} take part"
            + (f"; nobody exchanges the gradients of `{loose[0]}` between its copies" if loose else "")
            + ": `memfit.Step` knows FSDP2 over all ranks (with replicas as well), tensor parallelism over all ranks, and "
            "a mesh of both\nhint: `group=` names the ranks that share this model; `fully_shard` the whole model over the "
            "mesh's other dimension"
        )
    return Sharded(model, group, timeout, alike=meshes != {world})


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "set_requires_gradient_sync") and hasattr(module, "_get_fsdp_state")


def _groups(module: Any) -> Iterator[Any]:
    """The groups of parameters that a module gathers at once."""
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
    """The ranks that gradients are summed over besides, where each shard has several copies."""
    if not (one._is_hsdp and one.all_reduce_grads):
        return None
    return one._all_reduce_process_group
