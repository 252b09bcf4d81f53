"""`memfit.Step` with parameters that only the optimizer has, and with those that come and go during the
training.
"""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import memfit
import pytest
import torch
from test_step_ranks import ranks
from torch import nn
from training import Margin, Perceptron, batches, flat


def made() -> tuple[nn.Module, Margin]:
    torch.manual_seed(0)
    return Perceptron().double(), Margin().double()


def loss_of(criterion: nn.Module) -> Any:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return criterion(model(batch[0]), batch[1])

    return loss


def train(
    settings: dict[str, Any], by_hand: bool, clip: float | None, window: int, grows: bool, failing: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """A model and a criterion after some steps; halfway, the criterion's second part joins, and a layer is
    thawed.
    """
    model, criterion = made()
    model.net[0].requires_grad_(False)
    first = [criterion.centres] if grows else list(criterion.parameters())
    # A parameter that stands in two places is one.
    model.shared = model.net[3].bias
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": first}], lr=0.01)
    data = batches("perceptron", [8, 5, 8, 7, 8, 3], torch.float64)
    loss = loss_of(criterion)
    # An object, since a variable would be put back with all else.
    memory = SimpleNamespace(runs_out=False)

    def fails_once(module: nn.Module, batch: Any) -> torch.Tensor:
        value = loss(module, batch)
        if memory.runs_out and len(batch[0]) > 2:
            memory.runs_out = False
            value.backward()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return value

    step = (
        None
        if by_hand
        else memfit.Step(model, optimizer, fails_once, accumulate=window, clip_grad_norm=clip, **settings)
    )
    if step is not None:
        step.verify(data[0])
    memory.runs_out = failing
    for start in range(0, len(data), window):
        if start == window * (len(data) // window // 2):
            model.net[0].requires_grad_(True)
            if grows:
                optimizer.add_param_group({"params": [criterion.scale]})
        taken = data[start : start + window]
        if step is not None:
            for batch in taken:
                step(batch)
            step.finish()
            continue
        optimizer.zero_grad()
        loss(model, tuple(torch.cat(field) for field in zip(*taken, strict=True))).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(
                [each for group in optimizer.param_groups for each in group["params"]], clip
            )
        optimizer.step()
    if step is not None:
        assert all(each.grad is None for each in (*model.parameters(), *criterion.parameters()))
        assert (step.retries > 0) == failing
    return flat(model), flat(criterion)


@pytest.mark.parametrize("failing", [False, True], ids=["whole", "failing"])
@pytest.mark.parametrize("grows", [False, True], ids=["all", "later"])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_criterions_own_parameters_are_trained_with_the_model(
    window: int, clip: float | None, grows: bool, failing: bool
) -> None:
    expected = train({}, True, clip, window, grows, False)
    for settings in ({}, {"micro_batch": 3}):
        actual = train(settings, False, clip, window, grows, failing)
        for one, other in zip(actual, expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-10)


def test_gradients_outside_the_model_are_let_go_and_scaled() -> None:
    """With fp16's scaler; three steps that change nothing have the same gradient."""
    model, criterion = made()
    seen = []

    class Looking(torch.optim.SGD):
        def step(self, _closure: Any = None) -> None:  # type: ignore[override]
            seen.append(criterion.centres.grad.clone())

    optimizer = Looking([*model.parameters(), *criterion.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    batch = batches("perceptron", [8], torch.float64)[0]
    step = memfit.Step(model, optimizer, loss_of(criterion), scaler=scaler, micro_batch=4)
    for _ in range(3):
        step(batch)
    loss_of(criterion)(model, batch).backward()
    for gradient in seen:
        assert torch.allclose(gradient, criterion.centres.grad, rtol=1e-10)


def test_parameters_that_are_replaced_in_a_group_are_those_that_are_trained() -> None:
    """As when what is trained is made denser: other tensors in the same group, at any time."""
    model, criterion = made()
    optimizer = torch.optim.SGD([*model.parameters(), criterion.centres], lr=0.1)
    expected, plain = copy.deepcopy((model, criterion))
    data = batches("perceptron", [8] * 4, torch.float64)
    step = memfit.Step(model, optimizer, loss_of(criterion), micro_batch=3)
    other = torch.optim.SGD([*expected.parameters(), plain.centres], lr=0.1)
    for index, batch in enumerate(data):
        if index == 2:
            for one, of in ((criterion, optimizer), (plain, other)):
                before, one.centres = one.centres, nn.Parameter(one.centres.detach() * 2)
                params = of.param_groups[0]["params"]
                params[[each is before for each in params].index(True)] = one.centres
        step(batch)
        other.zero_grad()
        loss_of(plain)(expected, batch).backward()
        other.step()
    assert torch.allclose(flat(model), flat(expected), rtol=1e-10)
    assert torch.allclose(flat(criterion), flat(plain), rtol=1e-10)


def test_parameters_that_lie_beside_the_model_are_updated_in_the_backward_too() -> None:
    model, criterion = made()
    expected, plain = copy.deepcopy((model, criterion))
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    step = memfit.Step(model, optimizer, loss_of(criterion), levers={"optimizer-in-backward": True})
    other = torch.optim.SGD([*expected.parameters(), *plain.parameters()], lr=0.1)
    for batch in batches("perceptron", [8] * 3, torch.float64):
        step(batch)
        other.zero_grad()
        loss_of(plain)(expected, batch).backward()
        other.step()
    step.close()
    assert torch.allclose(flat(model), flat(expected), rtol=1e-10)
    assert torch.allclose(flat(criterion), flat(plain), rtol=1e-10)


@pytest.mark.parametrize("stops", [[1], [2], [1, 2], [3], [4, 5]])
@pytest.mark.parametrize("fails", [False, True], ids=["", "failing"])
@pytest.mark.filterwarnings("ignore:memfit")
def test_a_training_that_is_stopped_within_a_window_goes_on(stops: list[int], fails: bool) -> None:
    """Once or twice in a window, with memory that runs out afterwards, and with a count that only the loss
    tells.
    """
    data = batches("perceptron", [8, 5, 8, 3, 7, 8], torch.float64)

    def begin() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, memfit.Step]:
        model, criterion = made()
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9)
        # A retry puts variables around the loss back, and leaves iterators as they are.
        faults = itertools.chain([fails], itertools.repeat(False))

        def loss(module: nn.Module, batch: Any) -> Any:
            value = criterion(module(batch[0]), batch[1])
            if resumed and next(faults):
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return value * len(batch[0]), 3 * len(batch[0])

        return model, criterion, optimizer, memfit.Step(model, optimizer, loss, accumulate=3)

    resumed = False
    model, criterion, _, step = begin()
    list(step.over(data))
    expected = flat(model), flat(criterion)
    model, criterion, optimizer, step = begin()
    for index, batch in enumerate(data):
        if index in stops:
            resumed = True
            states = copy.deepcopy([each.state_dict() for each in (model, criterion, optimizer, step)])
            model, criterion, optimizer, step = begin()
            for each, state in zip((model, criterion, optimizer, step), states, strict=True):
                each.load_state_dict(state)
            # Saved again before anything ran, nothing is lost.
            step.load_state_dict(step.state_dict())
        step(batch)
    step.finish()
    assert torch.allclose(flat(model), expected[0], rtol=1e-10)
    assert torch.allclose(flat(criterion), expected[1], rtol=1e-10)


def test_ranks_exchange_what_the_model_does_not_have() -> None:
    said = ranks(2, 1, "criterion_training.py")
    assert said["worst"] < 1e-12
    assert said["apart"] == 0
    assert said["retried"] > 0
    assert said["differ"] == [True, True]
