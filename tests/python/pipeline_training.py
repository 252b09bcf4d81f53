"""One of two ranks of the tests of pipelines; run by `test_pipeline.py`, once per rank."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import memfit
import torch
import torch.distributed as dist
from parallel_training import error_of
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, CLASSES = 6, 5


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *_more: Any, **_others: Any) -> Any:
        return x + self.down(self.up(x).tanh())


class Base(nn.Module):
    """A stem, four blocks and a head, which a script's own forward pass connects."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.stem(inputs)
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Tuples(Base):
    """Blocks that return tuples, a mask, and a tensor of the stem's that each block gets as well."""

    class Pair(Block):
        def forward(self, x: torch.Tensor, first: torch.Tensor, *, mask: torch.Tensor) -> Any:
            return super().forward(x * mask) + 0.1 * first, None, {"seen": x.mean()}

    def __init__(self) -> None:
        super().__init__(Tuples.Pair)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = first = self.stem(inputs)
        mask = (inputs > 0).to(inputs.dtype)
        for block in self.blocks:
            x, _, seen = block(x, first, mask=mask)
            x = x + seen["seen"] * 0.0 + self.scale
        return self.head(x)


class Checkpointed(Base):
    """A model that checkpoints its blocks itself."""

    reentrant = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.stem(inputs)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x * self.scale)


class Writing(Base):
    """Blocks that write to what they get."""

    class Adding(Block):
        def forward(self, x: torch.Tensor, *_more: Any, **_others: Any) -> Any:
            return super().forward(x.add_(0.1))

    def __init__(self) -> None:
        super().__init__(Writing.Adding)


class Widening(Base):
    """Blocks of different widths."""

    class Wider(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(width, width + 1), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Widening.Wider(WIDTH + index) for index in range(4))
        self.head = nn.Linear(WIDTH + 4, CLASSES)


class Reentrant(Checkpointed):
    reentrant = True


class Frozen(Base):
    """A model of which only the last blocks are trained."""

    def __init__(self) -> None:
        super().__init__()
        for each in (self.stem, *self.blocks[:3]):
            each.requires_grad_(False)


class Skips(Base):
    """A model that adds what it had before its blocks after them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = first = self.stem(inputs)
        for block in self.blocks:
            x = block(x)
        return self.head(x + first)


class Detached(Skips):
    """The same where autograd does not see it."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.stem(inputs)
        first = x.detach()
        for block in self.blocks:
            x = block(x)
        return self.head(x + first)


class Twice(Base):
    """A model that runs its blocks two times."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.stem(inputs)
        for block in [*self.blocks, *self.blocks]:
            x = block(x)
        return self.head(x)


class Partly(Base):
    """A model that leaves out a block."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.stem(inputs)
        for block in self.blocks[:3]:
            x = block(x)
        return self.head(x)


class Normalised(Base):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


class Dropping(Base):
    """A model with dropout before and in its blocks."""

    class Dropped(Block):
        def forward(self, x: torch.Tensor, *_more: Any, **_others: Any) -> Any:
            return functional.dropout(super().forward(x), 0.5)

    def __init__(self) -> None:
        super().__init__(Dropping.Dropped)
        self.stem = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))


class Passing(Base):
    """A model that returns what it gets, if its weights are zero."""

    def __init__(self) -> None:
        super().__init__()
        for each in self.blocks.parameters():
            nn.init.zeros_(each)
        self.stem, self.head = nn.Identity(), nn.Identity()


def batch(size: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (size,), generator=generator)


def mean(model: nn.Module, part: Any) -> torch.Tensor:
    return functional.cross_entropy(model(part[0]), part[1])


def summed(model: nn.Module, part: Any) -> Any:
    return functional.cross_entropy(model(part[0]), part[1], reduction="sum"), len(part[1])


def several(model: nn.Module, part: Any) -> Any:
    outputs = model(part[0])
    some = part[1] != 0
    return {
        "all": (functional.cross_entropy(outputs, part[1], reduction="sum"), len(part[1])),
        "some": (outputs[some].square().sum(), int(some.sum()) * CLASSES),
    }


def with_metrics(model: nn.Module, part: Any) -> Any:
    outputs = model(part[0])
    hits = (outputs.argmax(1) == part[1]).double()
    return {
        "loss": functional.cross_entropy(outputs, part[1]),
        "hits": hits.mean(),
        "outputs": outputs.detach(),
    }


def noisy(model: nn.Module, part: Any) -> torch.Tensor:
    """Zero, if the last stage draws the noise that the first one has drawn."""
    noise = torch.randn_like(part[0])
    return functional.mse_loss(model(noise), noise)


def contrastive(model: nn.Module, part: Any) -> torch.Tensor:
    """A loss that compares samples."""
    outputs = model(part[0])
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def build(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind().double()


def step_of(model: nn.Module, loss: Any, plan: dict[str, Any] | None, **settings: Any) -> memfit.Step:
    """Return a step under a pipeline's plan, or of one process."""
    optimizer = torch.optim.SGD(
        [each for each in model.parameters() if each.requires_grad], lr=0.1, momentum=0.9
    )
    chosen = {"parallel": {"pipeline": 2, **plan}} if plan is not None else None
    return memfit.Step(model, optimizer, loss, plan=chosen, timeout=30, clip_grad_norm=0.5, **settings)


def trained(kind: Any, loss: Any, plan: dict[str, Any] | None, **settings: Any) -> dict[str, Any]:
    """Train for three steps; return the losses, metrics and parameters."""
    model = build(kind, seed=dist.get_rank() if plan is not None else 0)
    found: dict[str, Any] = {"losses": [], "named": [], "metrics": [], "parts": []}
    with step_of(model, loss, plan, **settings) as step:
        for index, size in enumerate((8, 7, 3)):
            result = step(batch(size, seed=index))
            found["losses"].append(float(result.loss))
            found["named"].append({name: float(each) for name, each in (result.losses or {}).items()})
            found["metrics"].append(result.metrics)
            found["parts"].append(result.micro_batches)
        found["changed"] = result.changed
    found["parameters"] = {name: each.detach().clone() for name, each in model.named_parameters()}
    return found


def apart(kind: Any, loss: Any, plan: dict[str, Any], **settings: Any) -> float:
    """Return the largest difference from one process, over both ranks."""
    found, expected = trained(kind, loss, plan, **settings), trained(kind, loss, None)
    names = [None, None]
    dist.all_gather_object(names, list(found["parameters"]))
    if set(names[0] or ()) | set(names[1] or ()) != set(expected["parameters"]):
        return float("inf")
    differences = [
        *(abs(one - other) for one, other in zip(found["losses"], expected["losses"], strict=True)),
        *(
            float((each - expected["parameters"][name]).abs().max())
            for name, each in found["parameters"].items()
        ),
    ]
    for one, other in zip(found["named"], expected["named"], strict=True):
        differences += [abs(one[name] - other[name]) for name in other]
    for one, other in zip(found["metrics"], expected["metrics"], strict=True):
        differences += [
            float((torch.as_tensor(one[name]) - torch.as_tensor(other[name])).abs().max()) for name in other
        ]
    worst = torch.tensor(max(differences), dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def refused(kind: Any, loss: Any = mean, plan: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    """Return the errors of both ranks, if no parameter was changed."""
    model = build(kind)
    before = [each.detach().clone() for each in model.parameters()]
    kept = dict(zip([id(each) for each in model.parameters()], before, strict=True))

    def run() -> None:
        with step_of(model, loss, plan or {}, **settings) as step:
            step(batch(4))

    error = error_of(run)
    same = all(torch.equal(each, kept[id(each)]) for each in model.parameters())
    errors: list[Any] = [None, None]
    dist.all_gather_object(errors, error if same else "parameters changed")
    return errors


def numerics(rank: int) -> dict[str, float]:
    """Run the script's cases with a fault on one of the ranks."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "distributed"))
    from numerics import differences, of_all_stages, one_process, under_plan
    from numerics_models import KINDS

    worst = dict.fromkeys(("gradients", "parameters", "losses", "retried"), 0.0)
    cases = (("decoder", "1f1b", 0, 90, True), ("deep", "interleaved-1f1b", 1, 400, False))
    for name, schedule, victim, at, backward in cases:
        expected = one_process(KINDS[name], torch.float64)
        plan = {"pipeline": 2, "schedule": schedule}
        found = of_all_stages(
            under_plan(KINDS[name], torch.float64, plan, rank, at if rank == victim else None, backward)
        )
        worst["retried"] += found["retries"]
        for name, difference in differences(found, expected).items():
            worst[name] = max(worst[name], difference)
    return worst


def saved(folder: str) -> list[float]:
    """Save after two steps. Return the parameters of both stages, in the model's order."""
    model = build(Base)
    names = [name for name, _ in model.named_parameters()]
    with step_of(model, mean, {}) as step:
        step(batch(8))
        step(batch(5))
        memfit.checkpoints.save(folder, step, batches=2)
        outside = error_of(lambda: model(batch(2)[0]))
    told: list[Any] = [None, None]
    dist.all_gather_object(told, {name: each.detach() for name, each in model.named_parameters()})
    together = {**told[0], **told[1]}
    assert "`memfit.Step`" in outside, outside
    return torch.cat([together[name].flatten() for name in names]).tolist()


def main() -> None:
    """Prints a line of JSON."""
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    answer: dict[str, Any] = {"numerics": numerics(rank)}
    interleaved = {"schedule": "interleaved-1f1b"}
    answer["apart"] = {
        "mean": apart(Base, mean, {}),
        "sum, interleaved": apart(Base, summed, interleaved),
        "large micro-batches": apart(Base, mean, {}, micro_batch=3),
        "several losses": apart(Base, several, {}),
        "metrics": apart(Base, with_metrics, {}, micro_batch=4),
        "tuples": apart(Tuples, mean, {}),
        "tuples, interleaved": apart(Tuples, mean, interleaved),
        "checkpointed": apart(Checkpointed, mean, {}),
        "checkpointed by a lever": apart(Base, mean, {}, levers={"checkpointing": "blocks"}),
        "frozen": apart(Frozen, mean, {}),
        "written to": apart(Writing, mean, {}),
    }
    answer["changed"] = trained(Base, contrastive, {}, allow="changes-training")["changed"]
    answer["unchanged"] = trained(Dropping, mean, {})["changed"]
    answer["parts"] = [trained(Base, mean, {}, **more)["parts"] for more in ({}, {"micro_batch": 3})]
    answer["noise"] = max(trained(Passing, noisy, {})["losses"][:1])
    shallow = functools.partial(refused, plan={"schedule": "interleaved-1f1b"})
    answer["refused"] = {
        "skips": refused(Skips),
        "widening": refused(Widening),
        "detached": refused(Detached),
        "twice": refused(Twice),
        "partly": refused(Partly),
        "reentrant": refused(Reentrant),
        "norm": refused(Normalised),
        "blocks": shallow(lambda: nn.Sequential(nn.ModuleList(Block() for _ in range(3)))),
        "sharded": refused(Base, plan={"pipeline": 1, "shard": 2, "schedule": "1f1b"}),
        "no call": refused(Base, lambda model, part: model.head(part[0]).square().mean()),
        "contrastive": refused(Base, contrastive),
        "failing": refused(Base, lambda model, part: mean(model, part) * failing_on_last()),
    }
    answer["saved"] = saved(sys.argv[1])
    if rank == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


def failing_on_last() -> int:
    """Divide by zero on the last stage."""
    return 1 // (1 - dist.get_rank())


if __name__ == "__main__":
    main()
