"""Module names that a lever accepts, and its messages about modules on which it has no effect."""

from __future__ import annotations

import memfit
import pytest
import torch
from lever_models import Language, saved_bytes
from memfit import _levers
from memfit._levers import CannotApply, Target
from memfit._levers.blocks import blocks
from torch import nn
from torch.nn import functional


class Shared(nn.Module):
    """One block that stands for all layers, in a list of its own, as ALBERT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x + self.layers[0](x)
        return self.head(x)


class Borrowed(nn.Module):
    """Takes a layer's weights without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.linear(x, self.first.weight, self.first.bias))


class Level(nn.Module):
    """A level of a U-Net whose class has no forward pass: the network calls its blocks."""


def test_the_blocks_of_a_container_without_a_forward_pass_are_found() -> None:
    """In many U-Nets, each level is a plain `nn.Module()`. Checkpointing it would have no effect."""

    def level(kind: type[nn.Module]) -> nn.Module:
        made = kind()
        made.block = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)])
        return made

    for kind in (nn.Module, Level):
        model = nn.Module()
        model.down = nn.ModuleList([level(kind), level(kind)])
        names = [f"down.{level}.block.{block}" for level in range(2) for block in range(2)]
        assert blocks(model) == names
    given = nn.ModuleList([Level(), Level()])
    for each in given:
        each.inner = nn.Linear(8, 8)
        each.forward = each.inner.forward
    assert blocks(given) == ["0", "1"], "an object may have a forward pass of its own"


def test_a_block_shared_by_all_layers_is_checkpointed() -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(16, 8)
    assert blocks(model) == ["layers.0"]
    plain = saved_bytes(lambda: model(x))
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    applied = _levers.apply(Target(model), [("checkpointing", "blocks")])
    assert saved_bytes(lambda: model(x)) < plain / 3
    model(x).sum().backward()
    assert all(
        torch.equal(parameter.grad, grad)
        for parameter, grad in zip(model.parameters(), expected, strict=True)
    )
    applied.undo()
    assert saved_bytes(lambda: model(x)) == plain


@pytest.mark.parametrize("lever", ["checkpointing", "compile"])
def test_a_list_of_modules_is_refused_with_its_entries(lever: str) -> None:
    """A `ModuleList` is never called, so a lever around it would silently do nothing."""
    with pytest.raises(
        CannotApply, match=r"`blocks` is a ModuleList.*name `blocks\.0`, `blocks\.1`, `blocks\.2`"
    ):
        _levers.apply(Target(Language()), [(lever, ["blocks"])])


def test_a_module_that_no_forward_calls_is_said_to_have_no_effect() -> None:
    model = Borrowed()
    batch = torch.randn(4, 8)

    def loss(module: nn.Module, part: torch.Tensor) -> torch.Tensor:
        return module(part).square().mean()

    step = memfit.Step(
        model, torch.optim.SGD(model.parameters(), 0.1), loss, levers={"checkpointing": ["first", "second"]}
    )
    with pytest.warns(UserWarning, match="no effect on `first`") as warned:
        step(batch)
    assert len(warned) == 1
    step.close()


class Scored(nn.Module):
    """Scores pairs of tokens, written out in a way that is, or is not, attention."""

    def __init__(self, is_attention: bool) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 5000)
        self.is_attention = is_attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1)
        weights = scores.softmax(-1) if self.is_attention else scores.sigmoid()
        return self.head(weights @ v)


def entropy(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(batch).flatten(0, 1), torch.zeros(24, dtype=torch.long))


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize(
    ("lever", "is_attention", "loss", "idle"),
    [
        ("sdpa", True, square, None),
        ("sdpa", False, square, "no attention was found"),
        ("chunked-loss", True, entropy, None),
        ("chunked-loss", True, square, "no `cross_entropy` of these logits"),
    ],
)
def test_a_lever_that_finds_nothing_to_replace_says_so(lever, is_attention, loss, idle, recwarn) -> None:
    model = Scored(is_attention)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, levers={lever: True})
    batch = torch.randn(4, 6, 8)
    step(batch)
    step(batch)
    said = [str(each.message) for each in recwarn if "has no effect" in str(each.message)]
    assert len(said) == (idle is not None), said
    assert idle is None or (f"`{lever}` has no effect" in said[0] and idle in said[0])
    step.close()
