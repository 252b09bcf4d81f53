"""One rank of the tests of `memfit.Step` with tensor parallelism; run by `test_step_ranks.py`, once
per rank.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from typing import Any

import memfit
import torch
import torch.distributed as dist
from shard_training import WINDOWS, Blocks, Places, batches
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from training import summed_loss


def build(rows: int) -> tuple[nn.Module, int]:
    """Return the model on a mesh with this many rows of ranks, each with its own batch; and this
    rank's row.
    """
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (rows, world // rows), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = Blocks()
    # The first and the last layer are on all ranks of a row alike.
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
    if rows > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    return model, mesh.get_coordinate()[0]


def train(rows: int, at: int | None, accumulate: int, clip: float) -> tuple[torch.Tensor, memfit.Step, int]:
    """Steps on this row's batches; with `at`, memory runs out at that place."""
    model, row = build(rows)
    places = Places(model, at)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    step = memfit.Step(
        model,
        optimizer,
        summed_loss,
        micro_batch=4,
        accumulate=accumulate,
        clip_grad_norm=clip,
        timeout=60,
    )
    with step:
        for batch in batches(5, row):
            step(batch)
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    return torch.cat([each.detach().reshape(-1).double() for each in whole]), step, places.seen


def plain(rows: int, accumulate: int, clip: float) -> torch.Tensor:
    """One process that has all rows' batches at once."""
    torch.manual_seed(0)
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    every = [batches(5, row) for row in range(rows)]
    for start in range(0, WINDOWS, accumulate):
        window = [one for made in every for one in made[start : start + accumulate]]
        inputs, labels = (torch.cat(each) for each in zip(*window, strict=True))
        total, count = summed_loss(model, (inputs, labels))
        optimizer.zero_grad()
        (total / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return torch.cat([each.detach().reshape(-1).double() for each in model.parameters()])


def main() -> None:
    """Prints a line of JSON."""
    faults = int(sys.argv[1])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    answer: dict[str, Any] = {"worst": 0.0, "apart": 0.0, "retried": 0}
    chance = random.Random(3)
    for rows, accumulate, clip in ((2, 1, 0.1), (2, 2, 100.0), (1, 1, 0.1)):
        expected = plain(rows, accumulate, clip)
        after, _, seen = train(rows, None, accumulate, clip)
        answer["worst"] = max(answer["worst"], float((after - expected).abs().max()))
        few = torch.tensor(seen)
        dist.all_reduce(few, op=dist.ReduceOp.MIN)
        for run in range(faults):
            at, victim = 1 + run * int(few) // faults, chance.randrange(world)
            after, step, _ = train(rows, at if rank == victim else None, accumulate, clip)
            told = torch.tensor(float(step.retries))
            dist.all_reduce(told)
            answer["retried"] += int(told > 0)
            answer["worst"] = max(answer["worst"], float((after - expected).abs().max()))
            gathered = [torch.empty_like(after) for _ in range(world)]
            dist.all_gather(gathered, after)
            apart = max(float((other - gathered[0]).abs().max()) for other in gathered)
            answer["apart"] = max(answer["apart"], apart)
    if rank == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
