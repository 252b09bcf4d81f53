"""Optimizer state under levers: packed moments, loading, groups that come later, wrappers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lever_models import Language, target_of
from memfit import _levers
from memfit._levers import CannotApply, Target
from memfit._levers.alone import why_together
from optimizer_kinds import Lion
from test_levers_updates import pair
from torch import nn
from training import flat


def test_a_loaded_optimizer_state_is_packed_under_a_packing_lever() -> None:
    (model, optimizer), (twin, plain) = pair(
        lambda params: torch.optim.AdamW(params, lr=0.01), lambda: nn.Sequential(nn.Linear(80, 80))
    )
    x = torch.randn(4, 80, generator=torch.Generator().manual_seed(2))

    def trained(each: nn.Module, steps: torch.optim.Optimizer, times: int) -> None:
        for _ in range(times):
            steps.zero_grad()
            each(x.to(next(each.parameters()).dtype)).square().mean().backward()
            steps.step()

    trained(twin, plain, 3)
    saved = copy.deepcopy(plain.state_dict())
    for name in ("bf16-optimizer-state", "8-bit-optimizer", "pure-bf16"):
        model.load_state_dict(twin.state_dict())
        applied = _levers.apply(Target(model, [optimizer]), [(name, True)])
        # Loaded state is not copied.
        optimizer.load_state_dict(copy.deepcopy(saved))
        held = optimizer.state[model[0].weight]["exp_avg_sq"]
        assert held.nbytes < 0.6 * saved["state"][0]["exp_avg_sq"].nbytes, name
        told = optimizer.state_dict()["state"]
        for number, known in saved["state"].items():
            for key, value in known.items():
                near = 0.03 * float(value.abs().max())
                assert told[number][key].dtype == torch.float32, (name, key)
                assert float((told[number][key] - value).abs().max()) <= near, (name, key)
        # Small state is not rounded.
        assert torch.equal(told[1]["exp_avg_sq"], saved["state"][1]["exp_avg_sq"])
        trained(model, optimizer, 2)
        applied.undo()
    assert optimizer.state[model[0].weight]["step"] == 5


def test_moments_that_two_levers_pack_are_packed_by_the_second_and_come_back() -> None:
    torch.manual_seed(0)
    model = nn.Linear(80, 80)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 80, dtype=model.weight.dtype)).square().mean().backward()
        optimizer.step()

    step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    applied = _levers.apply(Target(model, [optimizer]), [("pure-bf16", True), ("8-bit-optimizer", True)])
    held = optimizer.state[model.weight]["exp_avg"]
    assert held.nbytes < 0.3 * before[0]["exp_avg"].nbytes
    step()
    applied.undo()
    after = optimizer.state_dict()["state"]
    assert {key: value.dtype for key, value in after[0].items()} == {
        key: value.dtype for key, value in before[0].items()
    }
    assert int(after[0]["step"]) == 2
    step()


def test_a_small_packed_second_moment_does_not_cause_huge_updates() -> None:
    """In a block of codes with a gradient ten thousand times as large, a number moves no further than it
    would.
    """
    model = nn.Linear(64, 64, bias=False)
    plain = copy.deepcopy(model)
    gradient = torch.full((64, 64), 1e-4)
    gradient[:, 0] = 1.0
    for each in (model, plain):
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.01, weight_decay=0.0)
        if each is model:
            _levers.apply(Target(model, [optimizer]), [("8-bit-optimizer", True)])
        for share in (1.0, 1.0, 1.0, 0.0):
            # In the last step there is nothing of the small ones, and what they had is divided by.
            each.weight.grad = gradient.clone()
            each.weight.grad[:, 1:] *= share
            optimizer.step()
    apart = (model.weight - plain.weight).abs().detach()
    assert float(apart.max()) < 0.05


def test_groups_that_are_added_to_an_adafactor_have_the_rates_of_the_optimizer() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizer = torch.optim.AdamW(model[0].parameters(), lr=0.3, weight_decay=0.2, betas=(0.8, 0.9))
    applied = _levers.apply(Target(model, [optimizer]), [("adafactor", True)])
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert [optimizer.param_groups[1][key] for key in ("lr", "weight_decay")] == [0.3, 0.2]
    applied.undo()
    assert [set(group) for group in optimizer.param_groups] == [set(optimizer.param_groups[0])] * 2
    assert optimizer.param_groups[1]["betas"] == (0.8, 0.9)
    model[1](model[0](torch.ones(1, 3))).sum().backward()
    optimizer.step()
    applied = _levers.apply(Target(model, [optimizer]), [("pure-bf16", True)])
    with pytest.raises(CannotApply, match="would stop doing so"):
        _levers.apply(Target(model, [optimizer]), [("adafactor", True)])
    applied.undo()


def test_pure_bf16_refuses_optimizers_without_stochastic_rounding() -> None:
    model = target_of(Language(0.0)).model
    before, optimizer = flat(model), Lion(model.parameters())
    with pytest.raises(CannotApply, match="no stochastic rounding"):
        _levers.apply(Target(model, [optimizer]), [("pure-bf16", True)])
    assert torch.equal(flat(model), before)
    assert type(optimizer) is Lion


class Outer(torch.optim.Optimizer):
    """Stands around an optimizer, and is none by itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.optimizer.state)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


@pytest.mark.parametrize(
    "name", ["foreach-off", "fused-optimizer", "optimizer-in-backward", "8-bit-optimizer"]
)
def test_a_lever_on_a_wrapped_optimizer_is_applied_to_the_inner_one(name: str) -> None:
    learnt = []
    for around in (lambda optimizer: optimizer, Outer):
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = around(inner)
        applied = _levers.apply(Target(model, [optimizer]), [(name, True)])
        for _ in range(2):
            model(torch.ones(3, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        learnt.append(flat(model))
        applied.undo()
        assert type(inner) is torch.optim.AdamW
    assert torch.equal(*learnt)


def test_testing_an_optimizer_leaves_the_devices_random_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seeds(_seed: int) -> None:
        raise AssertionError("random numbers of the cards are the script's")

    optimizer = Lion(nn.Linear(3, 3).parameters())
    for cards in (torch.cuda, torch.xpu, torch.mps):
        for seed in ("manual_seed_all", "manual_seed"):
            if hasattr(cards, seed):
                monkeypatch.setattr(cards, seed, seeds)
    before = torch.get_rng_state()
    assert not why_together(optimizer)
    assert torch.equal(torch.get_rng_state(), before)
