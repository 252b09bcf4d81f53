"""LoRA adapters on frozen weights: trained parameters, their optimizers, and unchanged parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from lever_models import CLASSES, TOKENS, WIDTH, Language, language_loss, target_of
from memfit import _levers
from memfit._levers import Target
from torch import nn
from torch.nn import functional


class Classifier(nn.Module):
    """A language model's blocks with a head of its own behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Language(0.0)
        self.body.head = nn.Identity()
        self.norm, self.score = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.score(self.norm(self.body(tokens).mean(1)))


def tied() -> nn.Module:
    model = Language(0.0)
    model.head.weight = model.embed.weight
    return model


def wide() -> nn.Module:
    """More classes than any vocabulary, and no embedding."""
    return nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, CLASSES))


def several() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("build", "value", "whole"),
    [
        (Classifier, 2, {"norm.weight", "norm.bias", "score.weight", "score.bias"}),
        (Classifier, "rank=2", {"norm.weight", "norm.bias", "score.weight", "score.bias"}),
        (
            Classifier,
            {"rank": 2, "modules": ["body.blocks.0.mlp.0"]},
            {"norm.weight", "norm.bias", "score.weight", "score.bias"},
        ),
        (lambda: Language(0.0), 2, set()),
        (tied, 2, set()),
        (wide, 2, {"1.weight", "1.bias"}),
        (several, 2, {"4.weight", "4.bias"}),
        (several, {"rank": 2, "modules": ["0"]}, {"4.weight", "4.bias"}),
        (several, {"rank": 2, "modules": ["4"]}, set()),
    ],
)
def test_layers_after_the_blocks_stay_trainable_under_lora(
    build: Callable[[], nn.Module], value: object, whole: set[str]
) -> None:
    model = build()
    target = Target(model, [torch.optim.AdamW(model.parameters())])
    before = [(name, each.requires_grad) for name, each in model.named_parameters()]
    applied = _levers.apply(target, [("lora", value)])
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert {name for name in trained if "memfit_lora" not in name} == whole
    held = {id(each) for group in target.optimizers[0].param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters() if each.requires_grad}
    applied.undo()
    assert [(name, each.requires_grad) for name, each in model.named_parameters()] == before


def test_a_head_that_was_frozen_stays_so() -> None:
    model = Classifier()
    model.score.requires_grad_(False)
    applied = _levers.apply(Target(model, [torch.optim.AdamW(model.parameters())]), [("lora", 2)])
    assert not model.score.weight.requires_grad
    assert model.norm.weight.requires_grad
    applied.undo()


def test_each_matrix_is_updated_where_its_weight_was_and_nothing_else_is_lost() -> None:
    torch.manual_seed(0)
    model, criterion = Language(0.0), nn.Linear(1, 1, bias=False)
    first, second = [], []
    for name, parameter in model.named_parameters():
        (first if "attention" in name else second).append(parameter)
    slow = torch.optim.AdamW([{"params": second}, {"params": criterion.parameters(), "lr": 0.1}], lr=0.0)
    fast = torch.optim.SGD([{"params": first, "lr": 0.1}], lr=0.1)
    groups = [[list(group["params"]) for group in each.param_groups] for each in (slow, fast)]
    target = Target(model, [slow, fast], language_loss)

    def step() -> None:
        logits = model(TOKENS).flatten(0, 1) * criterion.weight
        functional.cross_entropy(logits, TOKENS.flatten()).backward()
        for each in target.optimizers:
            each.step()
            each.zero_grad()

    step()
    moments = copy.deepcopy(slow.state[second[0]])
    applied = _levers.apply(target, [("lora", 2)])
    by_path = dict(model.named_parameters())
    for optimizer, group, word in [
        (slow, slow.param_groups[0], "mlp"),
        (fast, fast.param_groups[0], "attention"),
    ]:
        expected = {id(each) for path, each in by_path.items() if "memfit_lora" in path and word in path}
        assert {id(each) for each in group["params"]} == expected
        assert optimizer.state.keys() <= {
            each for group in optimizer.param_groups for each in group["params"]
        }
    assert slow.param_groups[1]["params"] == [criterion.weight]

    before = {path: each.detach().clone() for path, each in by_path.items()}
    learnt = criterion.weight.detach().clone()
    step()
    # The settings are those of the weight's own group.
    moved = {path for path, each in by_path.items() if not torch.equal(each, before[path])}
    assert moved
    assert all("attention" in path and "memfit_lora" in path for path in moved)
    assert not torch.equal(criterion.weight, learnt)
    steps = float(slow.state[criterion.weight]["step"])
    applied.undo()
    assert float(slow.state[criterion.weight]["step"]) == steps == 2
    assert all(torch.equal(slow.state[second[0]][key], moments[key]) for key in moments)
    after = [[list(group["params"]) for group in each.param_groups] for each in (slow, fast)]
    assert all(
        [[id(each) for each in held] for held in one] == [[id(each) for each in held] for held in other]
        for one, other in zip(groups, after, strict=True)
    )


def test_a_shared_weight_gets_no_lora_adapters() -> None:
    model = Language(0.0)
    model.blocks[1].mlp[0].weight = model.blocks[0].mlp[0].weight
    applied = _levers.apply(target_of(model), [("lora", 2), ("quantized-base", "8-bit")])
    beside = {name for name, _ in model.named_parameters() if "memfit_lora_up" in name}
    assert not any("blocks.0.mlp.0." in name or "blocks.1.mlp.0." in name for name in beside)
    assert len(beside) == 10
    applied.undo()
