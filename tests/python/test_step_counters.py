"""Values in Python that a forward pass updates: a comparison restores them, and a loss that depends on them
is not divided, even if it does so only after many batches.
"""

from __future__ import annotations

import collections
import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memfit
import pytest
import torch
from loop_counters import COUNTS
from loop_models import rows
from torch import nn
from torch.nn import functional
from training import Perceptron, flat

# Calls after which a loss changes: more than a comparison makes.
LATE = 60


def by_loss(call: Callable[[], float], effect: float) -> tuple[nn.Module, Any]:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = functional.cross_entropy(model(batch[0]), batch[1])
        return value * effect if call() > LATE else value

    return Perceptron(), loss


def entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def by_forward(call: Callable[[], float], effect: float) -> tuple[nn.Module, Any]:
    class Scheduled(Perceptron):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found = super().forward(inputs)
            return found * effect if call() > LATE else found

    return Scheduled(), entropy


def by_attribute(call: Callable[[], float], effect: float) -> tuple[nn.Module, Any]:
    class Scheduled(Perceptron):
        def __init__(self) -> None:
            super().__init__()
            self.schedules = {"scale": [call]}

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found = super().forward(inputs)
            return found * effect if self.schedules["scale"][0]() > LATE else found

    return Scheduled(), entropy


def by_hook(call: Callable[[], float], effect: float) -> tuple[nn.Module, Any]:
    model = Perceptron()
    model.net[1].register_forward_hook(lambda _module, _inputs, out: out * effect if call() > LATE else out)
    return model, entropy


def by_hook_of_parameter(call: Callable[[], float], effect: float) -> tuple[nn.Module, Any]:
    model = Perceptron()
    model.net[0].weight.register_hook(lambda gradient: gradient * effect if call() > LATE else gradient)
    return model, entropy


def step_of(model: nn.Module, loss: Any, **settings: Any) -> memfit.Step:
    torch.manual_seed(3)
    return memfit.Step(model.double(), torch.optim.SGD(model.parameters(), lr=0.1), loss, **settings)


@pytest.mark.parametrize("place", [by_loss, by_forward, by_attribute, by_hook, by_hook_of_parameter])
@pytest.mark.parametrize("name", COUNTS)
def test_a_loss_that_changes_after_many_calls_is_refused(name: str, place: Any) -> None:
    call, read = COUNTS[name]()
    model, loss = place(call, 0.5)
    before = flat(model.double())
    step = step_of(model, loss, micro_batch=4)
    with pytest.raises(memfit.StepDoesNotFit, match=r"depends on values in Python|state differs"):
        step(rows(torch.Generator().manual_seed(3), 12))
    assert torch.equal(flat(model), before)
    assert read() == 0, "the comparison did not restore the count"


@pytest.mark.parametrize("place", [by_loss, by_forward, by_attribute, by_hook, by_hook_of_parameter])
@pytest.mark.parametrize("name", [name for name in COUNTS if name != "an array"])
def test_a_count_that_nothing_depends_on_is_named(name: str, place: Any) -> None:
    call, read = COUNTS[name]()
    model, loss = place(call, 1.0)
    step = step_of(model, loss, micro_batch=4)
    with pytest.warns(UserWarning, match="updates values in Python"):
        result = step(rows(torch.Generator().manual_seed(3), 12))
    assert result.micro_batches == read() == 3
    assert step.verification is not None
    assert step.verification.equal
    assert step.verification.counters


def test_a_moving_average_in_python_is_named() -> None:
    model, averages = Perceptron(), {}

    def record(_module: nn.Module, _inputs: Any, out: torch.Tensor) -> None:
        averages["activation"] = 0.9 * averages.get("activation", 0.0) + 0.1 * out.mean().item()

    model.net[1].register_forward_hook(record)
    step = step_of(model, entropy, micro_batch=4)
    with pytest.warns(UserWarning, match="updates values in Python"):
        step(rows(torch.Generator().manual_seed(3), 12))
    assert step.verification is not None
    assert step.verification.counters == ("averages['activation']",)


@pytest.mark.parametrize("kind", ["a tensor", "a number"])
def test_a_value_of_the_last_micro_batch_in_a_dictionary_is_named(kind: str) -> None:
    last: dict[str, Any] = {}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = functional.cross_entropy(model(batch[0]), batch[1])
        last["labels"] = batch[1] if kind == "a tensor" else value.item()
        return value

    step = step_of(Perceptron(), loss, micro_batch=4)
    with pytest.warns(UserWarning, match="values of the last micro-batch"):
        step(rows(torch.Generator().manual_seed(3), 12))
    assert step.verification is not None
    assert step.verification.overwritten == ("last['labels']",)
    assert not step.verification.counters


def test_sums_over_samples_are_no_difference() -> None:
    total = {"loss": 0.0, "samples": 0}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = functional.cross_entropy(model(batch[0]), batch[1])
        total["loss"] += value.item() * len(batch[0])
        total["samples"] += len(batch[0])
        return value

    step = step_of(Perceptron(), loss, micro_batch=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(rows(torch.Generator().manual_seed(3), 12))
    assert total["samples"] == 12


def test_a_history_of_losses_that_is_used_once_it_is_full_is_refused() -> None:
    history: collections.deque[float] = collections.deque(maxlen=50)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = functional.cross_entropy(model(batch[0]), batch[1])
        if len(history) == 50 and value.item() > 1.5 * sum(history) / 50:
            return value * 0
        history.append(value.item())
        return value

    step = step_of(Perceptron(), loss, micro_batch=4)
    with pytest.raises(memfit.StepDoesNotFit, match="changes training results"):
        step(rows(torch.Generator().manual_seed(3), 12))


def test_a_history_of_samples_that_is_used_in_the_middle_of_a_batch_is_refused() -> None:
    """Six samples do not fill it: all samples are compared again, since the history changes."""
    history: collections.deque[float] = collections.deque(maxlen=48)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        limit = sum(history) / len(history) if len(history) >= 31 else float("inf")
        history.extend(losses.tolist())
        return (losses * (losses < limit)).mean()

    generator = torch.Generator().manual_seed(3)
    step = step_of(Perceptron(), loss, micro_batch=4)
    for _ in range(2):
        step(rows(generator, 12))
    with pytest.raises(memfit.StepDoesNotFit, match="depends on the number of samples"):
        step(rows(generator, 12))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("every", [16, 30, 100])
def test_a_term_in_every_so_many_calls_is_refused(every: int, first: int) -> None:
    state = {"calls": first}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = functional.cross_entropy(model(batch[0]), batch[1])
        state["calls"] += 1
        return value * 2 if state["calls"] % every == first else value

    step = step_of(Perceptron(), loss, micro_batch=4)
    with pytest.raises(memfit.StepDoesNotFit, match="depends on values in Python"):
        step(rows(torch.Generator().manual_seed(3), 12))


@pytest.mark.parametrize(("counts", "place"), [(False, 1), (True, 2)])
def test_a_comparison_calls_the_loss_as_often_as_the_guide_says(counts: bool, place: int) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    stated = re.search(r"calls the loss function about (\d+) times, or (\d+) if it updates values", guide)
    assert stated is not None
    # An iterator is not put back after the comparison.
    calls, updates = itertools.count(), [0]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        next(calls)
        if counts:
            updates[0] += 1
        return functional.cross_entropy(model(batch[0]), batch[1])

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = step((torch.randn(16, 8), torch.randint(3, (16,))))
    assert result.micro_batches == 4
    assert next(calls) - 4 == pytest.approx(int(stated[place]), rel=0.1)
