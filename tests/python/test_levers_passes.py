"""Checkpointed blocks that change more than their output: the second pass begins as the first did, and leaves
no trace.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from memfit import _levers
from memfit._levers import Target
from memfit._levers import passes as passes_module
from runs import ROOT
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

numpy = pytest.importorskip("numpy")


class Block(nn.Module):
    """A residual block; `what` is what it does besides, or instead."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        if what == "old spectral norm":
            self.first = nn.utils.spectral_norm(self.first)
        if what == "spectral norm":
            self.first = parametrizations.spectral_norm(self.first)
        if what in ("instance norm", "batch norm"):
            kind = nn.InstanceNorm1d if what == "instance norm" else nn.BatchNorm1d
            self.norm = kind(8, affine=True, track_running_stats=True)
        if what == "scripted":
            self.first = torch.jit.trace(
                nn.Sequential(self.first, nn.BatchNorm1d(8).eval()), torch.ones(2, 6)
            )
        self.register_buffer("mean", torch.ones(8))
        self.register_buffer("table", torch.linspace(0, 1, 8))
        self.calls, self.scale, self.noted = 0, torch.ones(()), []
        self.state: torch.Tensor | None = None
        self.loss: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        what = self.what
        if what == "stochastic depth" and random.random() < 0.4:
            return x
        if what == "numpy" and numpy.random.rand() < 0.4:
            return x
        hidden = functional.gelu(self.first(x.flatten(0, 1)).unflatten(0, x.shape[:2])) + self.table
        if hasattr(self, "norm"):
            hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        now = hidden.detach().mean((0, 1))
        if what == "written":
            self.mean.mul_(0.9).add_(now, alpha=0.1)
            hidden = hidden * self.mean.clone()
        elif what == "written through data":
            hidden = hidden * self.mean.clone()
            self.mean.data.mul_(0.9).add_(now, alpha=0.1)
        elif what == "replaced":
            hidden = hidden * self.mean
            self.mean = 0.9 * self.mean + 0.1 * now
        elif what == "counted":
            self.calls += 1
            hidden = hidden / self.calls
        elif what == "an attribute written to":
            self.scale.add_(1)
            hidden = hidden * self.scale.clone()
        elif what == "made late":
            if not hasattr(self, "late"):
                self.late = now.clone()
            else:
                hidden = hidden * 2
        elif what == "recurrent":
            before, self.state = self.state, hidden.mean(1, keepdim=True)
            hidden = hidden if before is None else hidden + before.sin()
        elif what == "noted":
            self.noted.append(float(now.sum()))
            self.loss = hidden.square().mean()
        elif what == "functional batch norm":
            mean, variance = self.mean, self.table
            hidden = functional.batch_norm(hidden.flatten(0, 1), mean, variance, training=True).view_as(
                hidden
            )
        return x + self.second(hidden)


KINDS = (
    "scripted",
    "plain",
    "old spectral norm",
    "spectral norm",
    "instance norm",
    "batch norm",
    "stochastic depth",
    "numpy",
    "written",
    "written through data",
    "replaced",
    "counted",
    "an attribute written to",
    "made late",
    "recurrent",
    "noted",
    "functional batch norm",
)


def run(model: nn.Module, calls: int, steps: int) -> tuple[list[Any], Any]:
    """Gradients and buffers after each step, and what random numbers come next."""
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    batch, found = torch.randn(4, 5, 6, requires_grad=True), []
    for _ in range(steps):
        loss = torch.zeros(())
        for _ in range(calls):
            loss = loss + model(batch).square().mean()
        extra = [block.loss for block in model if block.loss is not None]
        (loss + sum(extra)).backward()
        found += [each.grad.clone() if each.grad is not None else None for each in model.parameters()]
        found += [each.clone() for each in model.buffers()]
        found += [(block.calls, block.scale.clone(), list(block.noted)) for block in model]
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.05)
                parameter.grad = None
        for block in model:
            block.state = None
    return found, (torch.rand(1), random.random(), numpy.random.rand())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("what", KINDS)
def test_a_recomputed_pass_sees_the_first_passs_state_and_leaves_no_trace(what: str, calls: int) -> None:
    built = []
    for _ in range(2):
        torch.manual_seed(0)
        built.append(nn.Sequential(*[Block(what) for _ in range(3)]))
    model, plain = built
    applied = _levers.apply(Target(model), [("checkpointing", "blocks")])
    assert same(run(model, calls, 3), run(plain, calls, 3))
    applied.undo()
    kept = [sorted(block.__dict__) for block in plain]
    assert [sorted(block.__dict__) for block in model] == kept


@pytest.mark.parametrize("what", ["written", "spectral norm", "counted"])
def test_checkpoints_within_checkpoints_and_backwards_that_are_run_twice(what: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(what) for _ in range(2)])
    plain = copy.deepcopy(model)
    first = _levers.apply(Target(model), [("checkpointing", "blocks")])
    second = _levers.apply(Target(nn.ModuleList([model])), [("checkpointing", ["0"])])
    for each in (model, plain):
        torch.manual_seed(1)
        loss = each(torch.randn(4, 5, 6)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, plain)]
    assert same(*gradients)
    assert same(list(model.buffers()), list(plain.buffers()))
    second.undo()
    first.undo()


def test_checkpointing_saves_only_state_that_the_pass_changes() -> None:
    block = nn.Sequential(Block("written"), nn.BatchNorm1d(5))
    for _ in range(2):
        passes = passes_module.Passes(block, [])
        with passes.first():
            block(torch.randn(4, 5, 6))
        copies = {key for _, key, before in passes._began if isinstance(before, torch.Tensor)}
        assert copies == {"mean"}
        assert {key for _, key, _ in passes._began} >= {"running_mean", "running_var"}
        assert passes._numbers == []
    before = dict(block[0].__dict__)
    with passes:
        block[0].mean.zero_()
        block[0].calls += 7
    assert float(block[0].mean.abs().sum()) > 0
    assert block[0].__dict__ == before


def test_random_numbers_of_numpy_are_left_alone_where_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy.random")
    assert len(list(passes_module._generators())) == 1


@pytest.mark.parametrize("what", ["plain", "batch norm", "spectral norm", "written", "counted"])
def test_gradients_of_gradients_go_through_a_checkpoint(what: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(what) for _ in range(2)])
    plain = copy.deepcopy(model)
    applied = _levers.apply(Target(model), [("checkpointing", "blocks")])
    found = []
    for each in (model, plain):
        torch.manual_seed(1)
        inputs = torch.randn(4, 5, 6, requires_grad=True)
        energy = each(inputs).sin().sum()
        (forces,) = torch.autograd.grad(energy, inputs, create_graph=True)
        (forces.square().mean() + energy.square()).backward()
        found.append([forces.detach(), *[parameter.grad for parameter in each.parameters()], *each.buffers()])
    assert same(*found)
    applied.undo()


def by_grad(model: nn.Module, inputs: torch.Tensor) -> Any:
    weights = dict(model.named_parameters())
    return torch.func.grad(lambda each: torch.func.functional_call(model, each, inputs).square().mean())(
        weights
    )


def by_samples(model: nn.Module, inputs: torch.Tensor) -> Any:
    def loss(each: Any, sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, each, sample[None]).square().mean()

    weights = {name: each.detach() for name, each in model.named_parameters()}
    return torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, inputs)


def by_other_weights(model: nn.Module, inputs: torch.Tensor) -> Any:
    weights = {name: nn.Parameter(each.detach() * 0.5) for name, each in model.named_parameters()}
    torch.func.functional_call(model, weights, inputs).square().mean().backward()
    assert all(each.grad is None for each in model.parameters())
    return {name: each.grad for name, each in weights.items()}


@pytest.mark.parametrize("way", [by_grad, by_samples, by_other_weights])
def test_functional_transforms_give_the_same_results_under_checkpointing(way: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block("plain") for _ in range(2)])
    inputs = torch.randn(4, 5, 6)
    expected = way(model, inputs)
    applied = _levers.apply(Target(model), [("checkpointing", "blocks")])
    found = way(model, inputs)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-7) for name in expected)
    applied.undo()


class Turned(nn.Module):
    """Takes what is not its own to keep under the names that caches have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(
        self, x: torch.Tensor, cache: Any = None, layer_past: Any = None, use_cache: bool = False
    ) -> torch.Tensor:
        assert use_cache is (layer_past is not None)
        x = x if cache is None else x * cache["cos"]
        x = x if layer_past is None else x + layer_past[0]
        return x + self.outer(functional.gelu(self.inner(x)))


@pytest.mark.parametrize(
    "given",
    [
        {"cache": {"cos": torch.full((6,), 0.5)}},
        {"layer_past": (torch.full((6,), 0.5), torch.ones(6)), "use_cache": True},
    ],
)
def test_arguments_named_like_a_cache_reach_a_checkpointed_block(given: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Turned(), Turned())
    inputs = torch.randn(4, 6)
    applied = _levers.apply(Target(model), [("checkpointing", "blocks")])
    said = model[0](inputs, **given)
    said.sum().backward()
    found = model[0].inner.weight.grad.clone()
    applied.undo()
    model.zero_grad()
    expected = model[0](inputs, **given)
    expected.sum().backward()
    assert torch.equal(said, expected)
    assert torch.equal(found, model[0].inner.weight.grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("prefix", [0, 3])
def test_a_cache_of_transformers_is_added_to_once_or_left_out(prefix: int, training: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).train(training)
    tokens = torch.randint(0, 50, (3, 8))
    learnt = [torch.randn(3, 2, prefix, 16) for _ in range(2)]

    def losses() -> tuple[torch.Tensor, torch.Tensor, int]:
        cache = transformers.DynamicCache()
        for layer in range(2 if prefix else 0):
            cache.update(learnt[layer], learnt[layer], layer)
        loss = model(tokens, labels=tokens, past_key_values=cache).loss
        loss.backward()
        gradient = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
        model.zero_grad()
        return loss, gradient, cache.get_seq_length(1)

    plain = losses()
    applied = _levers.apply(Target(model), [("checkpointing", "blocks")])
    found = losses()
    assert torch.equal(found[0], plain[0])
    assert torch.allclose(found[1], plain[1], atol=1e-7)
    assert found[2] == (0 if training and not prefix else plain[2])
    applied.undo()


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(nn.Sequential(*parts), nn.Sequential(*copy.deepcopy(parts)))


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(step)
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


def recompute(model: nn.Module) -> None:
    """Apply the function that `memfit plan --diff` writes into a script."""
    declared = (ROOT / "crates/memfit-vocabulary/src/levers/checkpointing.rs").read_text()
    source = declared.partition('r#"')[2].partition('"#')[0]
    names: dict[str, Any] = {"contextlib": contextlib, "functools": functools, "torch": torch}
    exec(source, names)
    names["recompute"](model, ["0", "1"])


@pytest.mark.parametrize("compiled", [False, True])
def test_the_patch_in_plain_pytorch_updates_running_statistics_once(compiled: bool) -> None:
    model = normalised()
    recompute(model)
    if compiled:
        model.compile(backend="aot_eager")
    expected = trained(normalised())
    for name, value in trained(model).items():
        torch.testing.assert_close(value, expected[name], msg=name)


class Fading(nn.Linear):
    """A layer that computes with a buffer which each forward pass updates, as spectral normalisation does."""

    def __init__(self, features: int) -> None:
        super().__init__(features, features)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.5)
        return super().forward(inputs * self.scale.clone()).tanh()


def test_the_patch_in_plain_pytorch_computes_again_with_the_buffers_of_the_first_pass() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Fading(6), Fading(6))
    model = copy.deepcopy(plain)
    recompute(model)
    expected = trained(plain)
    for name, value in trained(model).items():
        torch.testing.assert_close(value, expected[name], msg=name)
