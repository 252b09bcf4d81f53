"""Gradients that were there before a step are kept, and added to what the step gives."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from torch.nn import functional
from training import Perceptron

BATCH = (torch.randn(8, 6, dtype=torch.float64), torch.randint(5, (8,)))


def entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def penalty(model: nn.Module) -> torch.Tensor:
    return 0.1 * sum(each.pow(2).sum() for each in model.parameters() if each.ndim > 1)


def by_hand(model: nn.Module) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        penalty(model).backward()
        entropy(model, BATCH).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach() for each in model.parameters()]


class Fragile:
    """A loss that runs out of memory a number of times."""

    failures = 0

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss = entropy(model, batch)
        if self.failures and len(batch[0]) > 2 and model.training:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        return loss


@pytest.mark.filterwarnings("ignore:memfit")
@pytest.mark.parametrize("failures", [0, 1], ids=["in peace", "again after running out"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_gradients_from_before_a_step_are_added_to_its_own(micro_batch: int | None, failures: int) -> None:
    torch.manual_seed(0)
    model = Perceptron().double()
    wanted = by_hand(copy.deepcopy(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = Fragile()
    step = memfit.Step(model, optimizer, loss, micro_batch=micro_batch, clip_grad_norm=0.3)
    assert step.verify(BATCH).equal
    for _ in range(2):
        penalty(model).backward()
        loss.failures = failures
        step(BATCH)
    assert bool(step.retries) == bool(failures)
    for ours, theirs in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-9, atol=1e-12)


def test_gradients_from_before_a_step_are_restored_when_it_fails() -> None:
    model = Perceptron().double()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        entropy(model, batch).backward()
        raise KeyError("a mistake")

    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    penalty(model).backward()
    before = [(each.grad, each.grad.clone()) for each in model.parameters() if each.grad is not None]
    with pytest.warns(UserWarning, match="are added to the step's"), pytest.raises(KeyError):
        step(BATCH)
    after = [each.grad for each in model.parameters() if each.grad is not None]
    assert len(after) == len(before) > 0
    for (held, values), now in zip(before, after, strict=True):
        assert now is held
        assert torch.equal(now, values)


def test_zero_gradients_from_before_a_step_cause_no_warning() -> None:
    model = Perceptron().double()
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(BATCH)
    assert all(each.grad is None for each in model.parameters())


def test_a_step_without_earlier_gradients_saves_none() -> None:
    model = Perceptron().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), entropy)
    for _ in range(2):
        step(BATCH)
        assert step._window._given._kept == []
