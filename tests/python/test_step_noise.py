"""The gradient noise scale that `memfit.Step` measures, on problems where the true one is known."""

from __future__ import annotations

import copy
from typing import Any

import memfit
import pytest
import torch
from torch import nn

DIMENSIONS = 12


class Mean(nn.Module):
    """The loss `|w - x|²/2` has the gradient `w - x`: with `x ~ N(0, s²)` and `w = 1`, the noise scale is
    `s²`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(DIMENSIONS - 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (torch.cat([self.first, self.rest]) - inputs).square().sum(-1) / 2


def mean(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def weighted(model: nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    inputs, counted = batch
    return (model(inputs) * counted).sum(), float(counted.sum())


def step_of(loss: Any, **settings: Any) -> memfit.Step:
    model = Mean()
    # It must not move, or the noise scale would.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return memfit.Step(model, optimizer, loss, noise_scale=True, **settings)


def measured(step: memfit.Step, size: int, steps: int, deviation: float, tokens: bool = False) -> Any:
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        inputs = deviation * torch.randn(size, DIMENSIONS, generator=generator)
        if tokens:
            # Some of a sample's tokens count: 0 to 4 in turn, the same noise for each of them.
            inputs = deviation * torch.randn(size, 4, DIMENSIONS, generator=generator)
            counted = torch.tensor([[position < row % 5 for position in range(4)] for row in range(size)])
            step((inputs, counted.double()))
        else:
            step(inputs)
    return step.noise_scale()


@pytest.mark.parametrize("truth", [4.0, 36.0])
@pytest.mark.parametrize(
    "settings", [{"micro_batch": 4}, {"micro_batch": 5}, {"micro_batch": 12, "accumulate": 2}]
)
def test_the_estimate_converges_to_the_true_noise_scale(truth: float, settings: dict[str, int]) -> None:
    found = measured(step_of(mean, **settings), 16, 500, truth**0.5)
    assert found.value == pytest.approx(truth, rel=0.15)
    assert found.low < truth * 1.1
    assert found.high > truth * 0.9
    assert found.high - found.low < truth
    windows = 500 // settings.get("accumulate", 1)
    assert (found.estimates, found.undivided, found.unit) == (windows, 0, "samples")
    assert found.batch == pytest.approx(16 * settings.get("accumulate", 1))


def test_tokens_are_the_unit_of_a_loss_over_tokens() -> None:
    found = measured(step_of(weighted, micro_batch=3), 10, 300, 3.0, tokens=True)
    assert found.value == pytest.approx(9.0, rel=0.2)
    # Two rounds of 0 + 1 + 2 + 3 + 4 tokens.
    assert (found.unit, found.batch) == ("counted items", pytest.approx(20.0))


def test_an_undivided_training_gives_no_estimate_and_says_so() -> None:
    step = step_of(mean)
    assert "no optimizer step" in str(step.noise_scale())
    found = measured(step, 8, 3, 1.0)
    assert (found.value, found.low, found.high, found.batch) == (None, None, None, None)
    assert (found.estimates, found.undivided) == (0, 3)
    assert "single micro-batch" in str(found)
    assert "`micro_batch=` or `accumulate=`" in found.advice


def test_advice_names_the_rule_of_the_optimizer() -> None:
    few = measured(step_of(mean, micro_batch=4), 8, 9, 2.0)
    assert (few.low, few.high) == (None, None)
    assert few.advice.startswith("9 of the 10 steps")
    large = measured(step_of(mean, micro_batch=32), 64, 60, 1.0)
    assert "is larger than the noise scale" in large.advice
    assert "by the same factor, with a warm-up (SGD)" in large.advice
    model = Mean()
    step = memfit.Step(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0),
        mean,
        micro_batch=1,
        noise_scale=True,
    )
    small = measured(step, 2, 200, 5.0)
    assert "is smaller than the noise scale" in small.advice
    assert "square root" in small.advice
    assert str(small).startswith("noise scale ")


def test_measuring_changes_nothing_and_a_failed_attempt_counts_nothing() -> None:
    torch.manual_seed(1)
    fresh = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 1))
    data = [torch.randn(12, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(12)]

    def train(noise_scale: bool, failing: bool) -> tuple[memfit.Step, torch.Tensor]:
        model = copy.deepcopy(fresh)
        calls = [0]

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            value = model(batch).square().mean()
            calls[0] += 1
            if failing and len(batch) == 6 and len(batch) != 12:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return value

        step = memfit.Step(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss,
            micro_batch=6 if failing else 3,
            noise_scale=noise_scale,
            clip_grad_norm=0.5,
        )
        torch.manual_seed(2)
        for batch in data:
            step(batch)
        return step, torch.cat([each.detach().flatten() for each in model.parameters()])

    measuring, weights = train(True, False)
    assert torch.equal(weights, train(False, False)[1])
    failed, retried = train(True, True)
    assert failed.retries > 0
    assert torch.equal(weights, retried)
    assert failed.noise_scale() == measuring.noise_scale()
    # The hooks go with the step.
    hooks = [each._backward_hooks for each in measuring.model.parameters()]
    assert all(hooks)
    measuring.close()
    assert not any(hooks)


def test_the_noise_of_several_losses_and_of_what_has_no_gradients_is_not_measured() -> None:
    def several(model: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
        values = model(batch)
        return {"a": (values.sum(), float(len(values))), "b": (values.sum() * 2, 2.0 * len(values))}

    found = measured(step_of(several, micro_batch=4, allow="changes-training"), 8, 3, 1.0)
    assert (found.estimates, found.undivided) == (0, 0)
    assert "several losses" in found.advice
    model = Mean()
    with pytest.raises(ValueError, match="whole gradient of each micro-batch"):
        memfit.Step(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            mean,
            noise_scale=True,
            levers={"optimizer-in-backward": True},
        )
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), mean)
    with pytest.raises(RuntimeError, match="pass `noise_scale=True`"):
        step.noise_scale()
