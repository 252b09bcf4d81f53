"""One rank of the tests of `memfit.Step`; run by `test_step_ranks.py`, once per rank."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import warnings
from typing import Any

import memfit
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Normalised, Perceptron, flat, summed_loss

WINDOWS = 3


class Uneven(nn.Module):
    """A model of whose parts each rank uses another one."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Perceptron()
        self.own = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.shared(inputs) + self.own[dist.get_rank()](inputs)


def train(
    seed: int, rank: int, world: int, fault: bool, build: Any = Perceptron, micro: int = 4
) -> tuple[torch.Tensor, int]:
    """Three steps on batches that differ from rank to rank; with a fault, one rank fails once somewhere."""
    torch.manual_seed(0)
    model = build()
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    chance = random.Random(seed)
    victim, when = chance.randrange(world), chance.randrange(1, 2 * WINDOWS)
    # An iterator, since a number would be put back with all else.
    runs = itertools.count(1)

    def loss(module: nn.Module, batch: Any) -> Any:
        parts = next(runs)
        if fault and rank == victim and parts == when:
            module(batch[0])
            raise torch.OutOfMemoryError("CUDA out of memory.")
        total, count = summed_loss(module, batch)
        if fault and rank == victim and parts == when + 1 and seed % 2:
            total.register_hook(_fail_once())
        return total, count

    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    step = memfit.Step(
        wrapped,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss,
        micro_batch=micro,
        timeout=60,
    )
    step.verify((torch.randn(5, 6), torch.arange(5)))
    # Most faults are to meet a step, and not a comparison.
    step._division._due = sys.maxsize
    runs = itertools.count(1)
    for _ in range(WINDOWS):
        size = int(torch.randint(5, 9, (), generator=generator))
        batch = (
            torch.randn(size, 6, generator=generator),
            torch.randint(0, 5, (size,), generator=generator),
        )
        step(batch)
    step.close()
    return flat(model), step.retries


def _fail_once() -> Any:
    """Fails in the backward."""
    failed = []

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory, in the backward.")
        return gradient

    return hook


def spread(values: torch.Tensor, world: int) -> float:
    """Return the largest difference between ranks."""
    gathered = [torch.empty_like(values) for _ in range(world)]
    dist.all_gather(gathered, values)
    return max(float((other - gathered[0]).abs().max()) for other in gathered)


def main() -> None:
    """Prints a line of JSON."""
    runs = int(sys.argv[1])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    worst, apart, retried = 0.0, 0.0, 0
    for seed in range(runs):
        without, _ = train(seed, rank, world, fault=False)
        survived, retries = train(seed, rank, world, fault=True)
        worst = max(worst, float((survived - without).abs().max()))
        apart = max(apart, spread(survived, world))
        retried += retries > 0
    answer: dict[str, Any] = {"worst": worst, "apart": apart, "retried": retried}

    # The mean is over what all ranks counted: one process with all batches at once gets there too.
    together, _ = train(0, rank, world, fault=False, micro=100)
    torch.manual_seed(0)
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generators = [torch.Generator().manual_seed(other) for other in range(world)]
    for _ in range(WINDOWS):
        inputs, labels = [], []
        for generator in generators:
            size = int(torch.randint(5, 9, (), generator=generator))
            inputs.append(torch.randn(size, 6, generator=generator))
            labels.append(torch.randint(0, 5, (size,), generator=generator))
        total, count = summed_loss(model, (torch.cat(inputs), torch.cat(labels)))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    answer["whole"] = float((flat(model) - together).abs().max())
    uneven, _ = train(0, rank, world, fault=False, build=Uneven)
    answer["uneven"] = spread(uneven, world)
    answer["normalised"] = spread(train(0, rank, world, fault=True, build=Normalised, micro=8)[0], world)

    def broken(module: nn.Module, batch: Any) -> Any:
        if rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return summed_loss(module, batch)

    model = Perceptron()
    step = memfit.Step(
        DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), broken, timeout=60
    )
    try:
        step((torch.randn(4, 6), torch.zeros(4, dtype=torch.long)))
    except memfit.StepDoesNotFit as error:
        answer["ended"] = str(error).splitlines()[0]
    if rank == int(os.environ.get("TELLS", "0")):
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
