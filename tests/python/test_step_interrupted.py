"""`memfit.Step` that is left in the middle: nothing of what was begun goes into a later step."""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from training import Perceptron, batches, flat, mean_loss


class Interrupted(nn.Module):
    """A model whose backward, or forward, is interrupted by hand once."""

    def __init__(self, inner: nn.Module, part: int, backward: bool, error: type[BaseException]) -> None:
        super().__init__()
        self.inner, self.part, self.backward, self.error = inner, part, backward, error
        # No number, which would be put back with all else.
        self.parts = itertools.count(1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        part = next(self.parts)
        if part == self.part and self.backward:
            # The last layer has its gradient by then.
            self.inner.net[0].register_full_backward_hook(self._raise)
        outputs = self.inner(inputs)
        if part == self.part and not self.backward:
            raise self.error
        return outputs

    def _raise(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("window", "part"), [(1, 1), (1, 2), (2, 1), (2, 3), (2, 4)])
def test_a_step_that_is_interrupted_leaves_nothing_to_the_next(
    window: int, part: int, backward: bool, error: type[BaseException]
) -> None:
    data = batches("perceptron", [8] * 4, torch.float64)
    torch.manual_seed(0)
    expected = Perceptron(0.5).double()
    inner = copy.deepcopy(expected)
    torch.manual_seed(1)
    whole = memfit.Step(
        expected, torch.optim.SGD(expected.parameters(), lr=0.1), mean_loss, accumulate=window, micro_batch=4
    )
    list(whole.over(data))
    model = Interrupted(inner, part, backward, error)
    torch.manual_seed(1)
    step = memfit.Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), mean_loss, accumulate=window, micro_batch=4
    )
    model.part = 0
    step.verify(data[0])
    model.part, model.parts = part, itertools.count(1)
    # No comparison comes in between, which would meet the error before the step does.
    step._division._due = sys.maxsize
    assert step._division._changes is not None
    step._division._changes.list_again()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(error):
            list(step.over(data))
    inner.net[0]._backward_hooks.clear()
    # The gradients of the window's earlier batches are dropped as well, with a warning.
    assert any("earlier batches" in str(each.message) for each in said) == (part > 2)
    assert all(parameter.grad is None for parameter in model.parameters())
    list(step.over(data))
    assert torch.equal(flat(model), flat(expected))


def test_a_schedule_that_ends_leaves_a_whole_step() -> None:
    data = batches("perceptron", [8] * 2, torch.float64)
    torch.manual_seed(0)
    model = Perceptron().double()
    expected = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Ended:
        def step(self) -> None:
            raise ValueError("stepped too often")

    step = memfit.Step(model, optimizer, mean_loss, scheduler=Ended())
    other = torch.optim.SGD(expected.parameters(), lr=0.1)
    for batch in data:
        with pytest.raises(ValueError, match="too often"):
            step(batch)
        other.zero_grad()
        mean_loss(expected, batch).backward()
        other.step()
    assert torch.allclose(flat(model), flat(expected), rtol=1e-12)
    assert step.steps == 2


def test_a_state_that_is_loaded_within_a_window_takes_its_place() -> None:
    data = batches("perceptron", [8] * 4, torch.float64)
    torch.manual_seed(0)
    model = Perceptron().double()
    expected = copy.deepcopy(model)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_loss, accumulate=2)
    state = copy.deepcopy(step.state_dict())
    step(data[0])
    step.load_state_dict(state)
    for batch in data:
        step(batch)
    whole = memfit.Step(expected, torch.optim.SGD(expected.parameters(), lr=0.1), mean_loss, accumulate=2)
    list(whole.over(data))
    assert torch.equal(flat(model), flat(expected))
