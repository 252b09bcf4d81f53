"""One rank of the tests of ranks that are stuck in a collective; run by `test_step_ranks.py`, once
per rank.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import warnings
from typing import Any

import memfit
import torch
import torch.distributed as dist
from memfit._train import sharded
from shard_training import Blocks, batches
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import Perceptron, summed_loss

WINDOWS = 3


class Meeting(torch.autograd.Function):
    """Ranks meet in the forward and in the backward, and see that all of them are at the same place."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, place: int) -> torch.Tensor:
        context.place = place
        meet(place)
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        meet(-context.place)
        return gradient, None


def meet(place: int) -> None:
    """All ranks have to come from the same place."""
    told = torch.tensor([float(place)])
    dist.all_reduce(told)
    if told.item() != place * dist.get_world_size():
        raise AssertionError(f"ranks met that were not at place {place}")


class Meetings(nn.Module):
    """A model with collectives of its own, of which memfit knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), Perceptron()
        self.middle = nn.Linear(12, 6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = Meeting.apply(self.first(inputs), 1).relu()
        return self.last(Meeting.apply(self.middle(hidden), 2))


def train(model: nn.Module, seed: int, build: Any, at: int | None = None) -> tuple[torch.Tensor, memfit.Step]:
    """Steps on this rank's batches; with `at`, memory runs out at that of the places that `build` makes."""
    built = build(model)
    # The optimizer refers to the built model: shards are other parameters than the original ones.
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1, momentum=0.9)
    step = memfit.Step(built, optimizer, summed_loss, micro_batch=4, clip_grad_norm=1.0, timeout=60)
    seen = itertools.count(1)

    def place() -> None:
        if next(seen) == at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: place())
        module.register_forward_hook(lambda _module, _inputs, output: _hook(output, place))
    original = torch.cat

    def cat(*arguments: Any, **keywords: Any) -> torch.Tensor:
        # Gradients are put together to be exchanged.
        place()
        return original(*arguments, **keywords)

    torch.cat = cat  # type: ignore[assignment]
    try:
        for batch in batches(seed, dist.get_rank(), WINDOWS):
            step(batch)
    finally:
        torch.cat = original  # type: ignore[assignment]
    step.close()
    train.places = next(seen) - 1  # type: ignore[attr-defined]
    whole = [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]
    return torch.cat([each.detach().reshape(-1).double() for each in whole]), step


def _hook(output: torch.Tensor, place: Any) -> None:
    if output.requires_grad:
        output.register_hook(lambda gradient: place() or gradient)


def sharding(model: nn.Module) -> nn.Module:
    """FSDP2 where a failed rank cannot take part in the remaining collectives either."""
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main() -> None:
    """Prints a line of JSON."""
    faults = int(sys.argv[1])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    answer: dict[str, Any] = {"can_retry": hasattr(fully_shard(nn.Linear(2, 2)), "reset_iter_state")}
    take_part = sharded._Collective.take_part

    def fail_too(_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for name, kind, build in (
        ("copies", Meetings, DistributedDataParallel),
        ("shards", Blocks, sharding),
    ):
        torch.manual_seed(0)
        without, _ = train(kind(), 5, build)
        few = torch.tensor(train.places)  # type: ignore[attr-defined]
        dist.all_reduce(few, op=dist.ReduceOp.MIN)
        worst, apart, retried, ended = 0.0, 0.0, 0, 0
        chance = random.Random(11)
        for run in range(faults):
            at, victim = 1 + run * int(few) // faults, chance.randrange(world)
            torch.manual_seed(0)
            if name == "shards":
                sharded._Collective.take_part = fail_too  # type: ignore[method-assign]
            try:
                after, step = train(kind(), 5, build, at if rank == victim else None)
            except memfit.StepDoesNotFit:
                ended += 1
                continue
            finally:
                sharded._Collective.take_part = take_part  # type: ignore[method-assign]
            worst = max(worst, float((after - without).abs().max()))
            gathered = [torch.empty_like(after) for _ in range(world)]
            dist.all_gather(gathered, after)
            apart = max(apart, *(float((other - gathered[0]).abs().max()) for other in gathered))
            told = torch.tensor(float(step.retries))
            dist.all_reduce(told)
            retried += int(told > 0)
        answer[name] = {"worst": worst, "apart": apart, "retried": retried, "ended": ended}
    if rank == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
