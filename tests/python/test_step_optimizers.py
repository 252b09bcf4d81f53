"""`memfit.Step` with several optimizers: they step together, as in a loop written by hand."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from torch.nn import functional
from training import Perceptron


def entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(8, 6, generator=generator, dtype=torch.float64),
            torch.randint(5, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def matrices_and_the_rest(model: nn.Module) -> list[torch.optim.Optimizer]:
    """As people train with Muon: one optimizer for matrices, and one for all else."""
    matrices = [each for each in model.parameters() if each.ndim > 1]
    rest = [each for each in model.parameters() if each.ndim <= 1]
    return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(rest, lr=1e-2)]


def by_hand(model: nn.Module, steps: int) -> nn.Module:
    optimizers = matrices_and_the_rest(model)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]
    for batch in batches(steps):
        entropy(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return model


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Perceptron().double()


@pytest.mark.parametrize("micro_batch", [None, 1, 3, 8])
def test_several_optimizers_step_as_they_do_by_hand(model: nn.Module, micro_batch: int | None) -> None:
    wanted = by_hand(copy.deepcopy(model), 4)
    optimizers = matrices_and_the_rest(model)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]
    step = memfit.Step(
        model, optimizers, entropy, micro_batch=micro_batch, clip_grad_norm=0.5, scheduler=schedulers
    )
    for batch in batches():
        step(batch)
    for ours, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert step.optimizer is optimizers
    assert all(each.grad is None for each in model.parameters())


def test_optimizers_of_two_models_and_of_a_criterion(model: nn.Module) -> None:
    criterion = nn.Linear(5, 5, dtype=torch.float64)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(criterion(model(batch[0])), batch[1])

    other, criterion_before = copy.deepcopy(model), copy.deepcopy(criterion)
    one, two = torch.optim.Adam(model.parameters(), lr=1e-2), torch.optim.SGD(criterion.parameters(), lr=0.1)
    step = memfit.Step(model, (one, two), loss, micro_batch=3)
    for batch in batches():
        step(batch)
    ours = [copy.deepcopy(each) for each in (*model.parameters(), *criterion.parameters())]
    criterion.load_state_dict(criterion_before.state_dict())
    by_hand = torch.optim.Adam(other.parameters(), lr=1e-2), torch.optim.SGD(criterion.parameters(), lr=0.1)
    for batch in batches():
        loss(other, batch).backward()
        for optimizer in by_hand:
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(ours, (*other.parameters(), *criterion.parameters()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


class Failing(torch.optim.SGD):
    """Runs out of memory in its step, a number of times."""

    failures = 0

    def step(self, closure: Any = None) -> Any:
        if self.failures > 0:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        return super().step(closure)


def failing(model: nn.Module, failures: int) -> list[Any]:
    first, second = matrices_and_the_rest(model)
    other = Failing([each for group in second.param_groups for each in group["params"]], lr=0.1)
    other.failures = failures
    return [first, other]


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def test_out_of_memory_in_the_second_optimizers_step_raises_step_invalid(
    model: nn.Module,
) -> None:
    step = memfit.Step(model, failing(model, 1), entropy)
    with pytest.raises(memfit.StepInvalid, match="some parameters were updated"):
        step(batches(1)[0])


def test_a_backup_restores_parameters_that_the_first_optimizer_updated(model: nn.Module) -> None:
    before = weights(model)
    optimizers = failing(model, 2)
    step = memfit.Step(model, optimizers, entropy, backup=True)
    with pytest.raises(memfit.StepDoesNotFit, match="as they were before"):
        step(batches(1)[0])
    assert all(map(torch.equal, weights(model), before))
    assert not optimizers[0].state
    # And a step that fails once is done again, whole.
    optimizers[1].failures = 1
    step(batches(1)[0])
    assert not any(map(torch.equal, weights(model), before))


@pytest.mark.parametrize("lever", ["8-bit-optimizer", "foreach-off"])
def test_levers_are_applied_to_all_optimizers(lever: str) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64))
    optimizers = [torch.optim.AdamW(each.parameters()) for each in model]
    step = memfit.Step(model, optimizers, entropy, levers={lever: True})
    step((torch.randn(8, 64), torch.randint(5, (8,))))
    for optimizer in optimizers:
        (group,) = optimizer.param_groups
        if lever == "foreach-off":
            assert group["foreach"] is False
        else:
            assert not isinstance(optimizer.state[group["params"][0]]["exp_avg"], torch.Tensor)
    step.close()


def test_an_optimizer_of_another_model_is_warned_about(model: nn.Module) -> None:
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="none of the model's parameters"):
        memfit.Step(model, other, entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memfit.Step(model, own, entropy)
        memfit.Step(model, [own, other], entropy)


def test_invalid_combinations_of_optimizers_are_refused(model: nn.Module) -> None:
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    check: dict[str, tuple[Any, Callable[[], Any]]] = {
        "both have a parameter": (
            ValueError,
            lambda: [one, torch.optim.Adam([next(iter(model.parameters()))])],
        ),
        "an empty list": (TypeError, list),
        "is a dict": (TypeError, lambda: {"a": one}),
        "which has no `step`": (TypeError, lambda: [one, model]),
    }
    for message, (kind, made) in check.items():
        with pytest.raises(kind, match=message):
            memfit.Step(model, made(), entropy)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(one)
    with pytest.raises(TypeError, match="ReduceLROnPlateau"):
        memfit.Step(model, [one], entropy, scheduler=[plateau])


class Asserting(torch.optim.SGD):
    """Needs its closure in spite of its signature, as sharpness-aware minimisation is often written."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "a closure is required"
        return torch.enable_grad()(closure)()


class Raising(torch.optim.SGD):
    """The same with an error of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise RuntimeError("a closure is required")
        return torch.enable_grad()(closure)()


class TwoSteps(torch.optim.SGD):
    """Sharpness-aware minimisation whose two steps the user calls; its `step` would leave out the first."""

    def first_step(self) -> None: ...

    def second_step(self) -> None:
        self.step()


class Demanding(torch.optim.SGD):
    """Needs the loss."""

    def step(self, loss: Any) -> Any:  # type: ignore[override]
        return super().step(lambda: loss)


class Wrapping:
    """An optimizer around another, as libraries write them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return self.optimizer.step(*args, **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.LBFGS,
        Asserting,
        Raising,
        TwoSteps,
        Demanding,
        lambda parameters: Wrapping(torch.optim.LBFGS(parameters)),
        lambda parameters: [Wrapping(Asserting(parameters, lr=0.1))],
    ],
)
def test_optimizers_that_need_a_second_backward_pass_are_refused_before_the_first(
    model: nn.Module, make: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError, match="evaluates the model in its step") as error:
        memfit.Step(model, make(model.parameters()), entropy)
    assert "hint: pass an optimizer that needs one backward pass" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and name not in ("Optimizer", "LBFGS")
    ],
)
def test_all_other_optimizers_of_pytorch_are_accepted(model: nn.Module, name: str) -> None:
    matrices = [each for each in model.parameters() if each.dim() == 2]
    optimizer = getattr(torch.optim, name)(matrices, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    memfit.Step(model, optimizer, entropy, scheduler=scheduler).close()
