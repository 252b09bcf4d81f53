"""One of two ranks of the tests of parallel plans; run by `test_parallel.py`, once per rank."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import memfit
import torch
import torch.distributed as dist
from memfit._parallel import Parallel, ParallelError, apply
from torch import nn
from training import Normalised, Perceptron, mean_loss, summed_loss


class Block(nn.Module):
    """A block whose norm has another type than its matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.down(self.up(x).tanh()).to(self.norm.weight.dtype)).to(x.dtype)


class Opened(nn.Module):
    """A model that calls the children of its blocks itself."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = inputs
        for block in self.blocks:
            x = x + block.down(block.up(x).tanh())
        return x


class Blocks(nn.Module):
    """Blocks, the last of which shares a matrix with the head."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 4 * width, bias=False)
        self.head.weight = self.blocks[1].up.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = inputs
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(size: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 5, (size,), generator=generator)


def error_of(run: Any) -> str:
    """Return an error's message."""
    try:
        run()
    except Exception as error:
        return str(error)
    return ""


def step_of(model: nn.Module, plan: dict[str, int], **settings: Any) -> memfit.Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return memfit.Step(model, optimizer, summed_loss, plan={"parallel": plan}, timeout=30, **settings)


def different_batches(rank: int, plan: dict[str, int]) -> str:
    with step_of(Perceptron(), plan) as step:
        return error_of(lambda: step(batch(4, seed=rank)))


def order() -> list[float]:
    """Return the order in which a shuffling loader yields samples on this rank, which has its own seed."""
    torch.manual_seed(dist.get_rank())
    with step_of(Perceptron(0.5), {"replicate": 2}) as step:
        loader = torch.utils.data.DataLoader(range(8), batch_size=4, shuffle=True)
        order = []
        for numbers in loader:
            order += numbers.tolist()
            step(batch(4))
        # The model has drawn from its own generator.
        return [*order, float(torch.rand(()))]


def mixed(plan: dict[str, int]) -> float:
    """Return the difference of the first gradients from those of one process."""
    torch.manual_seed(0)
    model = Blocks().double()
    for block in model.blocks:
        block.norm.float()
    expected = torch.autograd.grad(mean_loss(model, _as_double(batch(6))), list(model.parameters()))
    model = apply(model, Parallel(**plan))
    rank = dist.get_rank()
    inputs, labels = _as_double(batch(6))
    mean_loss(model, (inputs[3 * rank : 3 * rank + 3], labels[3 * rank : 3 * rank + 3])).backward()
    found = [each.grad.full_tensor() for each in model.parameters()]
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def _as_double(made: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return made[0].double(), made[1]


def checkpoint(folder: str) -> list[float]:
    """Save twice, and once more without an end. Return the parameters of the second time."""
    torch.manual_seed(0)
    model = Perceptron()
    with step_of(model, {"shard": 2}) as step:
        step(batch(5))
        memfit.checkpoints.save(folder, step, batches=1)
        step(batch(5, seed=2))
        memfit.checkpoints.save(folder, step, batches=2)
        kept = torch.cat([each.full_tensor().detach().flatten() for each in model.parameters()])
        step(batch(5, seed=3))
        # As if it was killed: the new name never comes.
        rename = type(memfit.checkpoints.Path()).rename
        memfit.checkpoints.Path.rename = lambda *_: None
        memfit.checkpoints.save(folder, step, batches=3)
        memfit.checkpoints.Path.rename = rename
    return kept.tolist()


def numerics(rank: int) -> dict[str, float]:
    """Run the script's cases of two engines, with a fault on one of the ranks."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "distributed"))
    from numerics import differences, one_process, under_plan
    from numerics_models import KINDS

    kind = KINDS["decoder"]
    expected = one_process(kind, torch.float64)
    worst = dict.fromkeys(("gradients", "parameters", "losses", "retried"), 0.0)
    for plan, at, backward in (({"shard": 2}, 20, True), ({"tensor": 2}, 45, False)):
        found = under_plan(kind, torch.float64, plan, rank, at if rank else None, backward)
        worst["retried"] += found["retries"]
        for name, difference in differences(found, expected).items():
            worst[name] = max(worst[name], difference)
    return worst


def divided() -> list[list[int]]:
    """Return the shapes of the embedding and the head on this rank, of a decoder that ties them or not."""
    from numerics_models import Decoder

    shapes = []
    for tied in (True, False):
        model = apply(Decoder(tied=tied), Parallel(tensor=2))
        assert (model.head.weight is model.embed.weight) == tied
        shapes += [list(each.weight.to_local().shape) for each in (model.embed, model.head)]
    return shapes


def main() -> None:
    """Prints a line of JSON."""
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    answer: dict[str, Any] = {"different": [], "opened": [], "orders": [None, None], **numerics(rank)}
    for plan in ({"replicate": 2}, {"shard": 2}):
        answer["different"].append(different_batches(rank, plan))
    answer["world"] = error_of(lambda: step_of(Perceptron(), {"shard": 4}))
    answer["norm"] = error_of(lambda: step_of(Normalised(), {"replicate": 2}))
    with step_of(Normalised(), {"replicate": 2}, allow="changes-training") as step:
        answer["norm allowed"] = step(batch(8)).changed
    answer["twice"] = error_of(lambda: [apply(model, Parallel(shard=2)) for model in [Perceptron()] * 2])
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    try:
        apply(encoder, Parallel(tensor=2))
    except ParallelError as error:
        answer["tensor"] = error.why
    for plan in ({"shard": 2}, {"tensor": 2}):
        model = Opened()
        with step_of(model, plan) as step:
            answer["opened"].append(error_of(lambda: step(batch(4))))
    answer["divided"] = divided()
    dist.all_gather_object(answer["orders"], order())
    answer["mixed"] = mixed({"shard": 2})
    answer["saved"] = checkpoint(sys.argv[1])
    if rank == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
