"""Changes after a batch was compared: the loss function, the data, and variables around the loss.

Each of these trainings is equal in parts at first, and later is not: the difference is refused, never silent.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import memfit
import pytest
import torch
from loop_models import rows
from torch import nn
from torch.nn import functional
from training import Perceptron

BATCHES = 4


def weighed(model: nn.Module, batch: Any, weights: torch.Tensor) -> torch.Tensor:
    losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (losses * weights).sum() / weights.sum()


def with_weights(generator: torch.Generator, index: int) -> Any:
    """Weights that are one, but for the last sample of later batches."""
    inputs, labels = rows(generator, 12)
    weights = torch.ones(12, dtype=torch.float64)
    if index:
        weights[-1] = 0.2
    return inputs, labels, weights


def with_swapped_weights(generator: torch.Generator, _index: int) -> Any:
    """Pairs of weights with the same sum."""
    inputs, labels = rows(generator, 12)
    weights = torch.ones(12, 2, dtype=torch.float64)
    weights[-1] = torch.tensor([0.25, 1.75])
    return inputs, labels, weights


def with_array(generator: torch.Generator, index: int) -> Any:
    inputs, labels, weights = with_weights(generator, index)
    return inputs, labels, weights.numpy()


def with_missing(generator: torch.Generator, index: int) -> Any:
    inputs, _ = rows(generator, 12)
    target = torch.randn(12, generator=generator, dtype=torch.float64)
    if index:
        target[-2] = float("nan")
    return inputs, target


def in_dictionaries(generator: torch.Generator, index: int) -> Any:
    """A list of samples, some of which are ignored in later batches."""
    inputs, labels = rows(generator, 12)
    labels = labels.clamp(min=1)
    if index:
        labels[-3:] = 0
    return [{"inputs": inputs[place], "label": int(labels[place])} for place in range(12)]


def there(model: nn.Module, batch: Any) -> torch.Tensor:
    is_there = ~batch[1].isnan()
    return functional.mse_loss(model(batch[0])[:, 0][is_there], batch[1][is_there])


def of_dictionaries(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs = torch.stack([sample["inputs"] for sample in batch])
    labels = torch.tensor([sample["label"] for sample in batch])
    return functional.cross_entropy(model(inputs), labels, ignore_index=0)


DATA: dict[str, tuple[Callable[[torch.Generator, int], Any], Any]] = {
    "weights of later samples": (with_weights, lambda model, batch: weighed(model, batch, batch[2])),
    "weights with equal sums": (
        with_swapped_weights,
        lambda model, batch: weighed(model, batch, batch[2][:, 0]),
    ),
    "weights in NumPy": (
        with_array,
        lambda model, batch: weighed(model, batch, torch.from_numpy(batch[2])),
    ),
    "missing targets": (with_missing, there),
    "ignored labels in a list of samples": (in_dictionaries, of_dictionaries),
}


@pytest.mark.parametrize("micro", [1, 3, 7])
@pytest.mark.parametrize("name", DATA)
def test_samples_that_differ_in_a_new_way_are_compared(name: str, micro: int) -> None:
    make, loss = DATA[name]
    torch.manual_seed(3)
    generator, model = torch.Generator().manual_seed(3), Perceptron().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=micro)
    with pytest.raises(memfit.StepDoesNotFit, match="changes training results"):  # noqa: PT012
        for index in range(2):
            step(make(generator, index))


def reduced(model: nn.Module, batch: Any, now: Any) -> torch.Tensor:
    reduction = "mean" if now.epoch < 2 else "sum"
    return functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction)


def by_class(model: nn.Module, batch: Any, now: Any) -> torch.Tensor:
    weight = torch.ones(5) if now.epoch < 2 else torch.tensor([1.0, 5.0, 0.1, 2.0, 3.0])
    return functional.cross_entropy(model(batch[0]), batch[1], weight=weight.double())


def ignoring(model: nn.Module, batch: Any, now: Any) -> torch.Tensor:
    labels = batch[1] if now.epoch < 2 else batch[1].masked_fill(batch[1] == 1, -100)
    return functional.cross_entropy(model(batch[0]), labels)


def warmed_up(model: nn.Module, batch: Any, now: Any) -> torch.Tensor:
    """A term that compares samples, and has no weight at first."""
    found = model(batch[0])
    return functional.cross_entropy(found, batch[1]) + max(0, now.epoch - 1) * found.mean(0).pow(2).sum()


@pytest.mark.parametrize("loss", [reduced, by_class, ignoring, warmed_up])
def test_a_loss_that_changes_during_training_is_compared_again(loss: Any) -> None:
    torch.manual_seed(3)
    generator, model, now = torch.Generator().manual_seed(3), Perceptron().double(), SimpleNamespace(epoch=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = memfit.Step(model, optimizer, lambda model, batch: loss(model, batch, now), micro_batch=4)
    for _ in range(2):
        step(rows(generator, 12))
        now.epoch += 1
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(memfit.StepDoesNotFit, match="changes training results"):
        step(rows(generator, 12))
    assert all(map(torch.equal, before, model.parameters()))


class Average:
    """A running mean, as people keep one for their logs."""

    def __init__(self) -> None:
        self.total, self.values = 0, []

    def update(self, value: float) -> None:
        self.total += 1
        self.values.append(value)


def flooded(loss: torch.Tensor, _: nn.Module) -> torch.Tensor:
    return (loss - 0.5).abs() + 0.5


def clamped(loss: torch.Tensor, _: nn.Module) -> torch.Tensor:
    return loss.clamp(min=0.3)


def no_better_than(loss: torch.Tensor, _: nn.Module) -> torch.Tensor:
    return torch.maximum(loss, loss.new_tensor(0.3))


def with_bounded_weights(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    weights = [each for each in model.parameters() if each.dim() == 2]
    return loss + torch.relu(weights[0].norm() - 0.1) + weights[0].abs().sum()


@pytest.mark.parametrize("bend", [flooded, clamped, no_better_than, with_bounded_weights])
def test_a_kink_in_a_mean_over_the_batch_is_refused_before_the_mean_passes_it(bend: Any) -> None:
    """All samples are on one side of it at first."""
    torch.manual_seed(0)
    generator, model = torch.Generator().manual_seed(3), Perceptron().double()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return bend(functional.cross_entropy(model(batch[0]), batch[1]), model)

    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=4)
    if bend is with_bounded_weights:
        step(rows(generator, 12))
        assert step.verification is not None
        assert step.verification.equal, "a kink in a number of the weights alone is the same in each part"
    else:
        with pytest.raises(memfit.StepDoesNotFit, match="other side of the kink"):
            step(rows(generator, 12))


def test_a_comparison_leaves_objects_around_the_loss_as_they_were() -> None:
    generator, model = torch.Generator().manual_seed(3), Perceptron().double()
    meters = {"loss": Average()}

    def record(value: float) -> None:
        meters["loss"].update(value)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = functional.cross_entropy(model(batch[0]), batch[1])
        record(value.item())
        return value

    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=4)
    for _ in range(BATCHES):
        step(rows(generator, 12))
    assert meters["loss"].total == len(meters["loss"].values) == 3 * BATCHES
    assert step.verification is not None
    assert any("total" in name for name in step.verification.counters)


def test_a_failed_run_of_a_comparison_does_not_affect_the_next() -> None:
    """The first micro-batch of a comparison runs out of memory after it wrote to a tensor."""
    generator, model = torch.Generator().manual_seed(3), Perceptron().double()
    # An iterator, since values that a forward pass changes are put back.
    seen, faults = torch.zeros(1), iter([False, True])

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.add_(len(batch[0]))
        if next(faults, False):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return functional.cross_entropy(model(batch[0]), batch[1])

    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=4)
    step(rows(generator, 12))
    assert seen.item() == 12


class Frozen(nn.Module):
    """Batch normalisation whose statistics rest, and a tensor that is written to before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.register_buffer("scale", torch.ones(8))
        self.norm.eval()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.scale.copy_(torch.ones(8))
        return self.last(self.norm(self.first(inputs)) * self.scale)


def test_a_comparison_leaves_a_waiting_backward_pass_alone() -> None:
    """A micro-batch that takes a new path is compared between its forward and its backward pass."""
    torch.manual_seed(3)
    generator, model = torch.Generator().manual_seed(3), Frozen().double()
    inputs, labels = rows(generator, 12)
    inputs[:, 0] = 0
    inputs[9, 0] = 1

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        if (batch[0][:, 0] == 1).any():
            losses = losses * 1.0 + 0.0
        return losses.mean()

    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=1)
    assert step((inputs, labels)).micro_batches == 12
