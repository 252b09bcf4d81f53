"""Cuts a model into the stages of a pipeline, and keeps one rank's stages of it.

A model is cut between its repeated blocks. What comes before the first block belongs to the first stage, and
what comes after the last one to the last stage. A parameter that several stages use is kept by each of them,
and the ranks add its gradients: the matrix that an embedding and a head share, and parameters that the model
itself holds beside its blocks.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

from .degrees import Parallel, ParallelError

# In an interpreter without memfit, the package of levers has another name.
_LEVERS = "memfit_levers" if __name__.startswith("memfit_parallel") else "memfit._levers"

# Stages of each rank in the interleaved schedule.
_INTERLEAVED = 2


@dataclass(frozen=True)
class Hole:
    """A parameter of another rank's stage, in a module that the model calls on the way to this rank's."""

    module: nn.Module
    attribute: str
    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def fill(self, traced: bool) -> torch.Tensor:
        """Put a tensor without memory of its own in the parameter's place: NaN, so that nothing that depends
        on it goes unnoticed. Return its only element; if `traced`, autograd records what depends on it.
        """
        element = nothing(self.dtype, self.device, traced)
        self.module.__dict__[self.attribute] = element.expand(self.shape)
        return element


def nothing(dtype: torch.dtype, device: torch.device, traced: bool) -> torch.Tensor:
    """Return the element of a tensor whose values no one has."""
    element = torch.full((), float("nan") if is_inexact(dtype) else 0, dtype=dtype, device=device)
    return element.requires_grad_() if traced and is_inexact(dtype) else element


def is_inexact(dtype: torch.dtype) -> bool:
    """Return `True` for types that have NaN and gradients."""
    return dtype.is_floating_point or dtype.is_complex


@dataclass
class Stages:
    """The stages of a model, and which of them this rank has."""

    # The names of the blocks, in order.
    blocks: list[str]
    # The first block of each stage, and the end of the last one.
    bounds: list[int]
    # The rank in the pipeline, and the number of ranks.
    rank: int
    ranks: int
    interleaved: bool
    holes: list[Hole] = field(default_factory=list)
    # The names of each parameter that several ranks have, and those ranks, in order.
    shared: list[tuple[list[str], tuple[int, ...]]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.bounds) - 1

    def owner(self, stage: int) -> int:
        """Return the rank that has a stage."""
        return stage % self.ranks

    @property
    def own(self) -> list[int]:
        """This rank's stages."""
        return [stage for stage in range(self.count) if self.owner(stage) == self.rank]

    def of_block(self, index: int) -> int:
        """Return the stage that has a block."""
        return next(stage for stage in range(self.count) if index < self.bounds[stage + 1])


def cut_model(model: nn.Module, parallel: Parallel, rank: int) -> Stages:
    """Choose the stages of a model for this rank of its pipeline."""
    names: list[str] = import_module(f"{_LEVERS}.blocks").blocks(model)
    interleaved = parallel.schedule == "interleaved-1f1b"
    count = parallel.pipeline * (_INTERLEAVED if interleaved else 1)
    if len(names) < count:
        raise ParallelError(
            f"the model has {len(names)} repeated blocks, but the plan's pipeline needs at least {count}, one for "
            "each stage",
            "use fewer stages, or shard the model instead (`shard`)",
        )
    known = dict(model.named_modules())
    costs = [sum(each.numel() for each in known[name].parameters()) for name in names]
    # An embedding looks up rows, but a head multiplies with all of its matrix.
    places = _places(model, names)
    named = model.named_parameters(remove_duplicate=False)
    head = {id(each): each.numel() for name, each in named if places.get(name) == "after"}
    bounds = _balance(costs, sum(head.values()), count)
    return Stages(names, bounds, rank, parallel.pipeline, interleaved)


def _balance(costs: list[int], last: int, count: int) -> list[int]:
    """Divide blocks into consecutive stages so that the most expensive one is as cheap as possible; the last
    stage costs `last` in addition. Return where each begins, and where the last one ends.
    """
    sums = [0, *itertools.accumulate(costs)]
    limits = {end - begin + more for begin, end in itertools.combinations(sums, 2) for more in (0, last)}
    tried = sorted(limits)
    found = bisect.bisect_left(tried, True, key=lambda limit: _within(costs, last, count, limit)[0] == 0)
    return _within(costs, last, count, tried[found])


def _within(costs: list[int], last: int, count: int, limit: int) -> list[int]:
    """Fill stages from the last one on, up to a limit, but leave a block for each. The first begins with
    block 0 if that suffices.
    """
    bounds = [len(costs)]
    for stage in reversed(range(count)):
        begin, room = bounds[0], limit - (last if stage == count - 1 else 0)
        while begin > stage and (begin == bounds[0] or costs[begin - 1] <= room):
            begin -= 1
            room -= costs[begin]
        bounds.insert(0, begin)
    return bounds


def _places(model: nn.Module, blocks: list[str]) -> dict[str, str]:
    """Return where each parameter outside of the blocks is used, as far as its place in the model tells:
    "before" the first block, "after" the last one, or "anywhere".
    """
    order = {name: index for index, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    first, last = order[blocks[0]], order[blocks[-1]]
    holders = {name.rpartition(".")[0] for name in blocks}
    around = {
        "",
        *(".".join(name.split(".")[:end]) for name in holders for end in range(name.count(".") + 2)),
    }
    found = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        holder = name.rpartition(".")[0]
        if any(name.startswith(f"{block}.") for block in blocks):
            continue
        if holder in around:
            found[name] = "anywhere"
        else:
            index = order[holder]
            found[name] = "before" if index < first else "after" if index > last else "anywhere"
    return found


def keep_own(model: nn.Module, stages: Stages) -> None:
    """Remove the parameters of other ranks' stages from a model, and the buffers of their blocks. Their
    modules stay, since the model calls some of them on the way to its blocks, and looks at others.
    """
    users = _users(model, stages)
    known = dict(model.named_modules())
    own = {index for stage in stages.own for index in range(stages.bounds[stage], stages.bounds[stage + 1])}
    for names, ranks in users:
        if len(ranks) > 1:
            stages.shared.append((names, ranks))
        if stages.rank not in ranks:
            for name in names:
                if (hole := _make_hole(known, name, "_parameters")) is not None:
                    stages.holes.append(hole)
    for index, path in enumerate(stages.blocks):
        if index not in own:
            for name, _ in list(known[path].named_buffers()):
                _make_hole(known, f"{path}.{name}", "_buffers")


def _make_hole(known: dict[str, nn.Module], name: str, table: str) -> Hole | None:
    """Remove a tensor from its module's table. Return `None` if it is gone already, since its module has
    several names.
    """
    holder, _, attribute = name.rpartition(".")
    module = known.get(holder)
    tensor = getattr(module, table).pop(attribute, None) if module is not None else None
    if module is None or tensor is None:
        return None
    hole = Hole(module, attribute, name, tensor.shape, tensor.dtype, tensor.device)
    hole.fill(False)
    return hole


def _users(model: nn.Module, stages: Stages) -> list[tuple[list[str], tuple[int, ...]]]:
    """Return each parameter's names, and the ranks that use it."""
    places = _places(model, stages.blocks)
    ends = {
        "before": {stages.owner(0)},
        "after": {stages.owner(stages.count - 1)},
        "anywhere": set(range(stages.ranks)),
    }
    within = [(f"{name}.", stages.owner(stages.of_block(index))) for index, name in enumerate(stages.blocks)]
    found: dict[int, tuple[list[str], set[int]]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        names, ranks = found.setdefault(id(each), ([], set()))
        names.append(name)
        ranks |= (
            ends[places[name]] if name in places else {r for start, r in within if name.startswith(start)}
        )
    return [(names, tuple(sorted(ranks))) for names, ranks in found.values()]


def own_in_groups(
    optimizers: Iterable[torch.optim.Optimizer], before: Iterable[Any], model: nn.Module
) -> None:
    """Leave out of optimizers what other ranks' stages have."""
    own = {id(each) for each in model.parameters()}
    gone = {id(each) for each in before} - own
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) not in gone]
