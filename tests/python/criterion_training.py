"""A criterion's own parameters on several ranks: run by `test_step_parameters.py`, once for each rank."""

from __future__ import annotations

import itertools
import json
import warnings
from types import SimpleNamespace
from typing import Any

import memfit
import torch
import torch.distributed as dist
from rank_training import spread
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Margin, Perceptron, batches, flat


def made(seed: int = 0) -> tuple[Perceptron, Margin]:
    torch.manual_seed(0)
    model = Perceptron().double()
    torch.manual_seed(seed)
    return model, Margin().double()


def optimizer_of(model: nn.Module, criterion: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([*model.parameters(), criterion.centres], lr=0.1, momentum=0.9)


def begin(
    model: nn.Module, criterion: Margin, optimizer: torch.optim.Optimizer, fails: bool, **settings: Any
) -> memfit.Step:
    memory = SimpleNamespace(runs_out=False)

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        if memory.runs_out and len(batch[0]) > 3:
            memory.runs_out = False
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return criterion(module(batch[0]), batch[1])

    step = memfit.Step(DistributedDataParallel(model), optimizer, loss, timeout=60, **settings)
    step.verify(batches("perceptron", [8], torch.float64)[0])
    memory.runs_out = fails and dist.get_rank() == 1
    return step


def main() -> None:
    """Prints a line of JSON."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    worst, apart, retried = 0.0, 0.0, 0
    data = batches("perceptron", [8, 5, 7, 8], torch.float64)
    for clip, fails, inside in itertools.product([None, 0.1], [False, True], [False, True]):
        expected, plain = made()
        optimizer = optimizer_of(expected, plain)
        model, criterion = made()
        own = optimizer_of(model, criterion)
        step = begin(model, criterion, own, fails, clip_grad_norm=clip, micro_batch=4)
        step._ranks.inside = inside
        for index in range(0, len(data), world):
            if index:
                # One that joins while the training runs.
                optimizer.add_param_group({"params": [plain.scale]})
                own.add_param_group({"params": [criterion.scale]})
            step(data[index + rank])
            optimizer.zero_grad()
            inputs, labels = (torch.cat(field) for field in zip(*data[index : index + world], strict=True))
            plain(expected(inputs), labels).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(
                    [each for group in optimizer.param_groups for each in group["params"]], clip
                )
            optimizer.step()
        step.close()
        retried += step.retries
        for one, other in ((model, expected), (criterion, plain)):
            worst = max(worst, float((flat(one) - flat(other)).abs().max()))
            apart = max(apart, spread(flat(one), world))

    model, criterion = made(seed=rank)
    step = begin(model, criterion, optimizer_of(model, criterion), fails=False)
    ended: list[Any] = [None] * world
    try:
        step(data[0])
    except RuntimeError as error:
        dist.all_gather_object(ended, "that differ between ranks" in str(error))
    if rank == 0:
        print(json.dumps({"worst": worst, "apart": apart, "retried": retried, "differ": ended}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
