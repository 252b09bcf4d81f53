"""Levers that carry out an optimizer's updates: they give the weights that the plain optimizer gives, or are
refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lever_models import Language, traces
from memfit import _levers
from memfit._levers import CannotApply, Target
from memfit._levers.alone import why_together
from memfit._levers.pieces import take_over
from optimizer_kinds import ALONE, OF_TORCH, TOGETHER
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from training import flat


class Odd(nn.Module):
    """Parameters of all kinds: without dimensions, empty, complex, and one that only some steps use."""

    def __init__(self, complex_too: bool, empty: int = 0) -> None:
        super().__init__()
        self.matrix, self.scale = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.tensor(0.7))
        self.empty, self.sometimes = nn.Parameter(torch.zeros(empty, 3)), nn.Parameter(torch.randn(5))
        self.wave = nn.Parameter(torch.randn(5, dtype=torch.complex64)) if complex_too else None
        self.turned = nn.Parameter(torch.randn(5, 6).t())

    def forward(self, x: torch.Tensor, often: bool) -> torch.Tensor:
        y = (x @ (self.matrix + self.turned)) * self.scale + self.empty.sum()
        y = y + self.sometimes if often else y
        return (y * self.wave).abs() if self.wave is not None else y


def losses_of(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
    return model(x, step % 2 == 0).square().mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        losses_of(model, step).backward()
        optimizer.step()


def pair(make: Callable[[Any], torch.optim.Optimizer], build: Callable[[], nn.Module]) -> tuple[Any, Any]:
    """A model with its optimizer, twice."""
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    return (model, make(model.parameters())), (twin, make(twin.parameters()))


@pytest.mark.parametrize("kind", [*ALONE, *OF_TORCH])
def test_an_optimizer_in_the_backward_gives_the_weights_of_a_plain_one(kind: str) -> None:
    make = {**ALONE, **OF_TORCH}[kind]
    real_only = kind in ("own", "SGD fused", "AdamW fused", "Adafactor", "Rprop", "ASGD", "NAdam", "RAdam")
    (model, optimizer), (twin, plain) = pair(make, lambda: Odd(not real_only, int(kind == "Adafactor")))
    train(twin, plain)
    applied = _levers.apply(Target(model, [optimizer]), [("optimizer-in-backward", True)])
    train(model, optimizer)
    applied.undo()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_optimizer_in_backward_supports_sparse_gradients_and_muon() -> None:
    kinds: list[tuple[Callable[[Any], torch.optim.Optimizer], Callable[[], nn.Module]]] = [
        (
            lambda params: torch.optim.SparseAdam(params, lr=0.1),
            lambda: nn.Sequential(nn.EmbeddingBag(9, 5, sparse=True)),
        ),
        (
            lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
            lambda: nn.Sequential(nn.EmbeddingBag(9, 5, sparse=True)),
        ),
    ]
    if hasattr(torch.optim, "Muon"):
        kinds.append(
            (
                lambda params: torch.optim.Muon(params, lr=0.1),
                lambda: nn.Sequential(nn.EmbeddingBag(9, 5), nn.Linear(5, 4, bias=False)),
            )
        )
    tokens = torch.tensor([[1, 2], [2, 3]])
    for make, build in kinds:
        (model, optimizer), (twin, plain) = pair(make, build)
        _levers.apply(Target(model, [optimizer]), [("optimizer-in-backward", True)])
        for each, steps in ((model, optimizer), (twin, plain)):
            for _ in range(3):
                steps.zero_grad()
                each(tokens).square().sum().backward()
                steps.step()
        assert torch.equal(flat(model), flat(twin)), type(plain).__name__


@pytest.mark.parametrize("kind", TOGETHER)
def test_optimizers_that_need_all_parameters_at_once_are_not_split(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = TOGETHER[kind](model.parameters())
    marks, random = traces(model, optimizer), torch.get_rng_state()
    counted: list[Any] = []
    hook = register_optimizer_step_pre_hook(lambda *_: counted.append(1))
    with pytest.raises(CannotApply, match=r"together|a trial of it on small parameters failed"):
        _levers.apply(Target(model, [optimizer]), [("optimizer-in-backward", True)])
    with pytest.raises(CannotApply):
        take_over(optimizer, "host-optimizer-state")
    hook.remove()
    assert traces(model, optimizer) == marks
    assert torch.equal(torch.get_rng_state(), random)
    assert counted == [], "that it was tried is nobody's business"


def test_a_second_backward_of_a_step_is_refused_in_the_backward() -> None:
    def begin() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, torch.optim.Optimizer]:
        generator, judge = nn.Linear(3, 4), nn.Linear(4, 1)
        makers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, judge)]
        _levers.apply(Target(nn.ModuleList([generator, judge]), makers), [("optimizer-in-backward", True)])
        return generator, makers[0], judge, makers[1]

    generator, of_generator, judge, of_judge = begin()
    judge(torch.ones(2, 4)).mean().backward()
    with pytest.raises(RuntimeError, match="second backward pass reached"):
        judge(generator(torch.ones(2, 3)).detach()).mean().backward()
    # The other model's backward reaches this one's parameters.
    generator, of_generator, judge, of_judge = begin()
    judge(torch.ones(2, 4)).mean().backward()
    of_judge.step()
    judge(generator(torch.ones(2, 3))).mean().backward()
    of_generator.step()
    of_judge.zero_grad()
    with pytest.raises(RuntimeError, match="trained in turns as in a GAN"):
        judge(torch.ones(2, 4)).mean().backward()
    # Each after a step of its own, as many as one likes; a closure's backward belongs to the step that asks
    # for it.
    _, _, judge, of_judge = begin()
    for _ in range(3):
        judge(torch.ones(2, 4)).mean().backward()
        of_judge.step()

    def closure() -> torch.Tensor:
        of_judge.zero_grad()
        loss = judge(torch.ones(2, 4)).mean()
        loss.backward()
        return loss

    for _ in range(3):
        of_judge.step(closure)


def test_a_learning_rate_set_between_backward_and_step_is_refused() -> None:
    for rate in (0.1, torch.tensor(0.1)):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=False)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        _levers.apply(Target(model, [optimizer]), [("optimizer-in-backward", True)])
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            scheduler.step()
        model(torch.ones(1, 3)).sum().backward()
        scheduler.step()
        with pytest.raises(RuntimeError, match="between the backward pass and the step"):
            optimizer.step()


def test_optimizer_in_backward_refuses_second_optimizers_and_step_hooks() -> None:
    model = nn.Linear(3, 2)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    marks = [traces(model, each) for each in (first, second)]
    with pytest.raises(CannotApply, match="updated twice"):
        _levers.apply(Target(model, [first, second]), [("optimizer-in-backward", True)])
    assert [traces(model, each) for each in (first, second)] == marks
    handle = first.register_step_pre_hook(lambda *_: None)
    with pytest.raises(CannotApply, match="before each optimizer step"):
        _levers.apply(Target(model, [first]), [("optimizer-in-backward", True)])
    handle.remove()


def test_replicas_are_not_updated_before_their_gradients_are_exchanged(tmp_path: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(CannotApply, match="reduced between processes"):
            _levers.apply(Target(model, [optimizer]), [("optimizer-in-backward", True)])
    finally:
        dist.destroy_process_group()


def test_parameters_that_are_added_later_are_updated_in_the_step() -> None:
    (model, optimizer), (twin, plain) = pair(
        lambda params: torch.optim.SGD(list(params)[:2], lr=0.1, momentum=0.9), lambda: Language(0.0)
    )
    applied = _levers.apply(Target(model, [optimizer]), [("optimizer-in-backward", True)])
    tokens = torch.randint(0, 5000, (2, 12))
    for each, steps in ((model, optimizer), (twin, plain)):
        for index in range(4):
            if index == 2:
                steps.add_param_group({"params": list(each.parameters())[2:4], "lr": 0.3})
            each(tokens).square().mean().backward()
            steps.step()
            each.zero_grad()
    applied.undo()
    assert torch.equal(flat(model), flat(twin))


LEVERS = (
    "fused-optimizer",
    "foreach-off",
    "bf16-optimizer-state",
    "optimizer-in-backward",
    "pure-bf16",
    "adafactor",
)


@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_that_one_of_two_optimizers_refuses_is_on_neither(name: str) -> None:
    first, second = nn.Linear(70, 70), nn.Linear(4, 4)
    if name == "adafactor":
        second.register_parameter("wave", nn.Parameter(torch.ones(3, dtype=torch.complex64)))
    refuses = torch.optim.AdamW if name == "adafactor" else torch.optim.LBFGS
    optimizers = [torch.optim.AdamW(first.parameters()), refuses(second.parameters())]
    model = nn.ModuleList([first, second])
    before, marks = flat(first), [traces(model, each) for each in optimizers]
    settings = copy.deepcopy([optimizer.state_dict()["param_groups"] for optimizer in optimizers])
    target = Target(model, optimizers)
    with pytest.raises(CannotApply):
        _levers.apply(target, [(name, True)])
    assert [traces(model, each) for each in optimizers] == marks
    assert [optimizer.state_dict()["param_groups"] for optimizer in optimizers] == settings
    assert torch.equal(flat(first), before)
    assert (target.updates_in_backward, target.preparations) == (False, [])


@pytest.mark.parametrize("name", ["fused-optimizer", "foreach-off"])
def test_a_checkpoint_is_saved_and_loaded_under_a_lever_of_kernels(name: str) -> None:
    (model, optimizer), (twin, plain) = pair(
        lambda params: torch.optim.AdamW(params, lr=0.01, fused=name == "foreach-off"),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)),
    )

    def trained(each: nn.Module, steps: torch.optim.Optimizer) -> None:
        for _ in range(2):
            steps.zero_grad()
            each(torch.ones(2, 4)).square().sum().backward()
            steps.step()

    trained(twin, plain)
    saved = copy.deepcopy(plain.state_dict())
    trained(twin, plain)
    applied = _levers.apply(Target(model, [optimizer]), [(name, True)])
    trained(model, optimizer)
    told = optimizer.state_dict()["param_groups"]
    assert [(group["foreach"], group["fused"]) for group in told] == [
        (group["foreach"], group["fused"]) for group in plain.param_groups
    ]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["fused"] == (name == "fused-optimizer")
    trained(model, optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    applied.undo()
    for group in optimizer.param_groups:
        assert (group["foreach"], group["fused"]) == (None, name == "foreach-off")
    assert float((flat(model) - flat(twin)).abs().max()) < 1e-6


def test_an_overridden_step_does_not_get_the_fused_kernel() -> None:
    class Looks(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = nn.Linear(3, 3)
    with pytest.raises(CannotApply, match="step of its own"):
        _levers.apply(Target(model, [Looks(model.parameters())]), [("fused-optimizer", True)])


def test_pytorchs_step_under_another_name_is_given_the_fused_kernel_and_is_rounded_by_chance() -> None:
    model = nn.Linear(70, 70)
    optimizer = ALONE["inherited"](model.parameters())
    applied = _levers.apply(Target(model, [optimizer]), [("fused-optimizer", True), ("pure-bf16", True)])
    assert optimizer.param_groups[0]["fused"] is True
    model(torch.ones(2, 70, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    applied.undo()


def test_a_wrapped_optimizer_is_tested_as_its_inner_one() -> None:
    class Wrapper(torch.optim.Optimizer):
        """As accelerate has it."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        state = property(
            lambda self: self.optimizer.state, lambda self, to: setattr(self.optimizer, "state", to)
        )
        param_groups = property(
            lambda self: self.optimizer.param_groups,
            lambda self, to: setattr(self.optimizer, "param_groups", to),
        )
        defaults = property(lambda self: self.optimizer.defaults)

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step(closure)

    model = nn.Linear(3, 3)
    assert why_together(Wrapper(ALONE["own"](model.parameters()))) == ""
    assert "together" in why_together(Wrapper(TOGETHER["counts in its group"](model.parameters())))
