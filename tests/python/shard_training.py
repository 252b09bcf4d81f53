"""One rank of the tests of `memfit.Step` with FSDP2; run by `test_step_ranks.py`, once per rank."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import warnings
from typing import Any

import memfit
import torch
import torch.distributed as dist
from memfit._train.sharded import _AnnouncedCollective
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from training import summed_loss

WINDOWS = 3


class Blocks(nn.Module):
    """Three equal blocks between a first and a last layer, with dropout that differs from call to call."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 8))
            for _ in range(3)
        )
        self.last = nn.Linear(8, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(functional.layer_norm(hidden, (8,)))


class Places:
    """Counts the places of a step at which memory can run out, and lets it at one of them."""

    def __init__(self, model: nn.Module, at: int | None) -> None:
        self.at = at
        # An object of a library, since numbers of the test's own are put back like all else.
        self._seen = multiprocessing.Value("i", 0)
        for module in model.modules():
            module.register_forward_pre_hook(lambda *_: self.pass_by())
            module.register_forward_hook(self._after)

    def _after(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.pass_by()
        if output.requires_grad:
            output.register_hook(lambda gradient: self.pass_by() or gradient)

    @property
    def seen(self) -> int:
        return self._seen.value

    def pass_by(self) -> None:
        self._seen.value += 1
        if self.seen == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def batches(seed: int, rank: int, windows: int = WINDOWS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of different sizes, with labels that are ignored."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    made = []
    for _ in range(windows):
        size = int(torch.randint(3, 12, (), generator=generator))
        labels = torch.randint(0, 5, (size,), generator=generator)
        labels[1::4] = -100
        made.append((torch.randn(size, 6, generator=generator), labels))
    return made


def train(
    seed: int,
    at: int | None = None,
    *,
    micro: int = 4,
    dropout: float = 0.0,
    replicas: bool = False,
    accumulate: int = 1,
    clip: float | None = None,
) -> tuple[torch.Tensor, memfit.Step, Places]:
    """Steps on this rank's batches; with `at`, memory runs out at that place."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Blocks(dropout)
    shape, names = ((2, world // 2), ("copies", "shards")) if replicas else ((world,), ("shards",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(seed * 31 + rank)
    places = Places(model, at)
    original = _AnnouncedCollective.allocate

    def allocate(self: Any, *args: Any, **keywords: Any) -> torch.Tensor:
        places.pass_by()
        return original(self, *args, **keywords)

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = memfit.Step(
        model,
        optimizer,
        summed_loss,
        micro_batch=micro,
        accumulate=accumulate,
        clip_grad_norm=clip,
        timeout=60,
    )
    _AnnouncedCollective.allocate = allocate
    try:
        with step:
            for batch in batches(seed, rank):
                step(batch)
    finally:
        _AnnouncedCollective.allocate = original
    whole = [parameter.full_tensor().detach().reshape(-1).double() for parameter in model.parameters()]
    return torch.cat(whole), step, places


def plain(seed: int, world: int, accumulate: int, clip: float | None) -> torch.Tensor:
    """One process that has all ranks' batches at once."""
    torch.manual_seed(0)
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    every = [batches(seed, rank) for rank in range(world)]
    for start in range(0, WINDOWS, accumulate):
        window = [one for made in every for one in made[start : start + accumulate]]
        total, count = summed_loss(
            model, (torch.cat([inputs for inputs, _ in window]), torch.cat([labels for _, labels in window]))
        )
        optimizer.zero_grad()
        (total / count).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])


def main() -> None:
    """Prints a line of JSON."""
    faults = int(sys.argv[1])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    answer: dict[str, Any] = {}

    # All ranks' batches, of sizes that differ, come to what one process makes of them.
    whole = 0.0
    for case in ({}, {"micro": 100}, {"micro": 1}, {"accumulate": 2}, {"clip": 0.1}):
        after, _, _ = train(3, **case)
        reference = plain(3, world, case.get("accumulate", 1), case.get("clip"))
        whole = max(whole, float((after - reference).abs().max()))
    answer["whole"] = whole
    if world == 4:
        after, _, _ = train(3, replicas=True)
        answer["copies"] = float((after - plain(3, world, 1, None)).abs().max())

    # Memory runs out once, at a place and on a rank that differ from run to run.
    without, _, places = train(5)
    longer, _, _ = train(5, accumulate=2)
    few = torch.tensor(places.seen)
    dist.all_reduce(few, op=dist.ReduceOp.MIN)
    can_retry = hasattr(fully_shard(nn.Linear(2, 2)), "reset_iter_state")
    answer.update(retried=0, worst=0.0, apart=0.0, ended=[], can_retry=can_retry)
    chance = random.Random(7)
    for run in range(faults):
        # Every place comes in turn where there are as many runs as places.
        at, victim = 1 + run * int(few) // faults, chance.randrange(world)
        try:
            after, step, _ = train(
                5,
                at if rank == victim else None,
                replicas=world == 4 and run % 2 == 1,
                accumulate=1 + run % 3 // 2,
            )
        except memfit.StepDoesNotFit as error:
            answer["ended"].append(str(error).splitlines()[0])
            continue
        retried = torch.tensor(float(step.retries))
        dist.all_reduce(retried)
        answer["retried"] += int(retried > 0)
        expected = without if run % 3 < 2 else longer
        answer["worst"] = max(answer["worst"], float((after - expected).abs().max()))
        gathered = [torch.empty_like(after) for _ in range(world)]
        dist.all_gather(gathered, after)
        answer["apart"] = max(
            answer["apart"], *(float((other - gathered[0]).abs().max()) for other in gathered)
        )

    # A user's own error is raised on its rank, and the other ranks are notified.
    def broken(module: nn.Module, batch: Any) -> Any:
        if rank == 1:
            module(batch[0])
            raise KeyError("nothing of the kind")
        return summed_loss(module, batch)

    model = Blocks()
    fully_shard(model)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), broken, timeout=60)
    try:
        step(batches(0, rank)[0])
    except KeyError:
        answer["error"] = "its own"
    except memfit.StepDoesNotFit as error:
        answer["error"] = str(error).splitlines()[0]
    if rank == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
