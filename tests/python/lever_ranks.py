"""Levers that are about several ranks, on one rank of several; run by `test_step_ranks.py`, once for each
rank.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import warnings
from typing import Any

import memfit
import torch
import torch.distributed as dist
from memfit import _levers
from memfit._levers import Target
from memfit._parallel.replicas import instead_of_replicas
from rank_training import spread
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import flat, summed_loss

STEPS = 3


class Blocks(nn.Module):
    """Blocks that are alike, which are sharded one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.first(inputs)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def data(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A rank's batches, of other sizes than the others'."""
    generator = torch.Generator().manual_seed(rank)
    sizes = [4 + rank, 7, 5 + 2 * rank]
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for size in sizes
    ]


def whole(model: nn.Module, world: int) -> torch.Tensor:
    """One process that has all ranks' batches at once."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batches in zip(*(data(rank) for rank in range(world)), strict=True):
        total, count = summed_loss(model, tuple(torch.cat(field) for field in zip(*batches, strict=True)))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    return flat(model)


def main() -> None:
    """Prints a line of JSON."""
    assert sys.argv[1]
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Blocks()
    expected = whole(model, world)
    answer: dict[str, Any] = {}

    sharded = copy.deepcopy(model)
    # An iterator, since values in variables and objects are put back.
    faults = itertools.chain([rank == world - 1], itertools.repeat(False))

    def loss(module: nn.Module, batch: Any) -> Any:
        total = summed_loss(module, batch)
        if step.steps == 1 and next(faults):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return total

    optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.01)
    step = memfit.Step(
        sharded, optimizer, loss, micro_batch=3, timeout=60, levers={"shard": True, "checkpointing": "blocks"}
    )
    answer["held"] = sum(parameter.to_local().numel() for parameter in sharded.parameters())
    for batch in data(rank):
        step(batch)
    step.close()
    answer["retries"], answer["can_retry"] = step.retries, step._ranks.can_retry
    answer["parameters"] = sum(parameter.numel() for parameter in sharded.parameters())
    # The model stays sharded when the step is closed.
    whole_again = torch.cat([each.full_tensor().detach().flatten().double() for each in sharded.parameters()])
    answer["shard"] = float((whole_again - expected).abs().max())
    answer["apart"] = spread(whole_again, world)

    # The wrapper's own exchange of gradients, in buckets that they lie in: a mean over ranks that count
    # alike.
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    plain = DistributedDataParallel(copy.deepcopy(model))
    made = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (wrapped, plain)]
    applied = _levers.apply(Target(wrapped, [made[0]], summed_loss), [("gradient-as-bucket-view", True)])
    answer["views"] = wrapped.gradient_as_bucket_view
    for batch in data(rank):
        for each, optimizer in zip((wrapped, plain), made, strict=True):
            total, count = summed_loss(each, batch)
            (total / count).backward()
            optimizer.step()
            optimizer.zero_grad()
    applied.undo()
    answer["bucket view"] = float((flat(wrapped) - flat(plain)).abs().max())
    answer["bucket view apart"] = spread(flat(wrapped), world)
    answer["undone"] = not wrapped.gradient_as_bucket_view

    # Sharded where the script would have replicated it, the first of its batches gathered without an
    # exchange.
    undo = instead_of_replicas(list)
    inner = copy.deepcopy(model)
    instead = DistributedDataParallel(inner)
    undo()
    answer["instead held"] = sum(parameter.to_local().numel() for parameter in instead.parameters())
    replicated = DistributedDataParallel(copy.deepcopy(model))
    for each in (instead, replicated):
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.01)
        first, *others = data(rank)
        with each.no_sync():
            total, count = summed_loss(each, first)
            (total / count).backward()
        for batch in others:
            total, count = summed_loss(each, batch)
            (total / count).backward()
            optimizer.step()
            optimizer.zero_grad()
    gathered = torch.cat([parameter.full_tensor().flatten() for parameter in instead.parameters()])
    answer["instead"] = float((gathered - flat(replicated)).abs().max())
    if rank == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
