"""Losses that `memfit.Step` is given as means and that are none: a batch is not divided where parts come to
another gradient, and is where they do not.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from torch.nn import functional
from training import Perceptron, Tagger, flat

WEIGHTS = torch.tensor([1.0, 5.0, 0.1, 2.0, 3.0], dtype=torch.float64)


def entropy(model: nn.Module, batch: Any, **settings: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], **settings)


def squares(model: nn.Module, batch: Any, **settings: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[0][:, :5], **settings)


def masked(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return entropy(model, batch, reduction="none"), batch[1] > 1


def overlap(model: nn.Module, batch: Any, *over: int) -> torch.Tensor:
    found, there = model(batch[0]).sigmoid(), batch[0][:, :5]
    return 1 - (2 * (found * there).sum(over or None) + 1) / (
        found.sum(over or None) + there.sum(over or None) + 9
    )


def uncertain(model: nn.Module, batch: Any) -> torch.Tensor:
    """Two losses, weighed by what is learnt."""
    bias = model.net[3].bias
    return (-bias[0]).exp() * entropy(model, batch) + bias[0] + squares(model, batch) * 0.5


def variational(model: nn.Module, batch: Any) -> torch.Tensor:
    outputs = model(batch[0])
    return functional.mse_loss(outputs, batch[0][:, :5], reduction="sum") - 0.5 * torch.sum(
        1 + outputs - outputs.exp()
    )


MEANS: dict[str, Any] = {
    "a mean": entropy,
    "smoothed labels": lambda model, batch: entropy(model, batch, label_smoothing=0.1),
    "a sum over its number": lambda model, batch: entropy(model, batch, reduction="sum") / len(batch[0]),
    "the same, multiplied": lambda model, batch: (
        squares(model, batch, reduction="sum") * (1 / (5 * len(batch[0])))
    ),
    "two of them": uncertain,
    "of squares": lambda model, batch: squares(model, batch).reshape(1),
    "with weight decay": lambda model, batch: (
        squares(model, batch) + 1e-3 * sum(each.pow(2).sum() for each in model.parameters()).sqrt()
    ),
    "of quotients": lambda model, batch: overlap(model, batch, 1).mean(),
    "several": lambda model, batch: torch.stack([entropy(model, batch), squares(model, batch)]).sum(),
}
OTHERS: dict[str, Any] = {
    "a sum": lambda model, batch: entropy(model, batch, reduction="sum"),
    "sums": variational,
    "classes that weigh more": lambda model, batch: entropy(model, batch, weight=WEIGHTS),
    "a label that is ignored": lambda model, batch: entropy(model, batch, ignore_index=1),
    "a label that is made to be": lambda model, batch: functional.cross_entropy(
        model(batch[0]), batch[1].masked_fill(batch[1] == 1, -100)
    ),
    "a mask": lambda model, batch: (
        (masked(model, batch)[0] * masked(model, batch)[1]).sum() / masked(model, batch)[1].sum()
    ),
    "a number of a mask": lambda model, batch: (
        (masked(model, batch)[0] * masked(model, batch)[1]).sum() / batch[1].gt(1).sum().item()
    ),
    "what a mask selects": lambda model, batch: masked(model, batch)[0][masked(model, batch)[1]].mean(),
    "a root": lambda model, batch: squares(model, batch).sqrt(),
    "a quotient": overlap,
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 6, generator=generator, dtype=torch.float64), torch.tensor([1, 3, 2, 4, 1, 1, 2, 0])


@pytest.mark.parametrize("micro", [1, 3, 4])
@pytest.mark.parametrize("name", MEANS)
def test_means_are_those_of_the_whole_batch(name: str, micro: int) -> None:
    check(MEANS[name], micro, equal=True)


@pytest.mark.parametrize("micro", [3, 4])
@pytest.mark.parametrize("name", OTHERS)
def test_losses_that_are_no_means_are_not_divided(name: str, micro: int) -> None:
    check(OTHERS[name], micro, equal=False)


def test_losses_as_sums_with_counts_are_weighted_correctly() -> None:
    def selected(model: nn.Module, batch: Any) -> Any:
        losses, mask = masked(model, batch)
        return losses[mask].sum(), mask.sum()

    def weighed(model: nn.Module, batch: Any) -> Any:
        return entropy(model, batch, weight=WEIGHTS, reduction="sum"), WEIGHTS[batch[1]].sum()

    check(selected, 3, equal=True)
    check(weighed, 3, equal=True)
    # A mean with the right count is one as well.
    counted = {"count": lambda batch: float(WEIGHTS[batch[1]].sum())}
    check(OTHERS["classes that weigh more"], 3, equal=True, **counted)


def test_labels_that_are_ignored_in_a_later_part_are_seen() -> None:
    """As in pictures of which each place has a label: 255 stands for none, and the first batch has none of
    these.
    """
    torch.manual_seed(0)
    model = Tagger().double()

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(module(batch[0]).transpose(1, 2), batch[1], ignore_index=255)

    tokens, labels = torch.randint(0, 11, (8, 7)), torch.randint(0, 5, (8, 7))
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=4)
    assert step((tokens, labels)).changed == ()
    # As many in each part change nothing.
    labels[:, 0] = 255
    assert step((tokens, labels)).changed == ()
    labels[6, 3] = 255
    before = flat(model)
    with pytest.raises(memfit.StepDoesNotFit, match="the loss differs by"):
        step((tokens, labels))
    assert torch.equal(flat(model), before)


def check(loss: Any, micro: int, *, equal: bool, **settings: Any) -> None:
    """A step in micro-batches gives the result of plain torch, or is refused unless `allow` permits it."""
    torch.manual_seed(0)
    model = Perceptron().double()
    plain = copy.deepcopy(model)
    before = flat(model)
    returned = loss(plain, data())
    (returned[0] / returned[1] if isinstance(returned, tuple) else returned).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()

    def step(**more: Any) -> memfit.Step:
        return memfit.Step(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss,
            micro_batch=micro,
            **settings,
            **more,
        )

    if not equal:
        with pytest.raises(memfit.StepDoesNotFit, match=r"differs by|is NaN"):
            step()(data())
        assert torch.equal(flat(model), before)
        with pytest.warns(UserWarning, match="splitting the batch changes training results"):
            assert step(allow="changes-training")(data()).changed
        # A part may have nothing that a mask lets through, which is not a number.
        assert not torch.allclose(flat(model), flat(plain), rtol=1e-10, atol=1e-12)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step()(data()).changed == ()
    assert torch.allclose(flat(model), flat(plain), rtol=1e-10, atol=1e-12)


def test_class_weights_as_long_as_the_last_batch_are_not_split() -> None:
    """The last batch of an epoch has as many samples as there are classes."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        each = functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
        return (each * batch["weights"][batch["y"]]).mean()

    weights = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0])
    batches = [
        {"x": torch.randn(n, 6), "y": torch.randint(0, 5, (n,)), "weights": weights} for n in (16, 16, 5)
    ]
    torch.manual_seed(0)
    model = Perceptron()
    plain = copy.deepcopy(model)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=2)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    for batch in batches:
        step(batch)
        optimizer.zero_grad()
        loss(plain, batch).backward()
        optimizer.step()
    torch.testing.assert_close(flat(model), flat(plain))
