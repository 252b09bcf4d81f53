"""`pure-bf16` on ordinary models: they run, and what bf16 would spoil is as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from memfit import _levers
from memfit._levers import Target
from torch import nn
from torch.nn import functional
from training import flat

WIDTH = 16


class PositionTable(nn.Module):
    """As ViT has it: a table of positions that is added to tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, WIDTH, 4, 4), nn.LayerNorm(WIDTH)
        self.register_buffer("pos_embed", torch.randn(1, 4, WIDTH))
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.block(self.norm(x)).mean(1))


class Rotary(nn.Module):
    """Angles of positions, in a module of their own that passes on what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(x.shape[1]).float() + 1000, self.inv_freq)
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


class Turned(nn.Module):
    """Causal attention with rotated queries and keys, and a mask of the least number that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.rotary, self.head = Rotary(), nn.Linear(WIDTH, 50)
        self.register_buffer("mask", torch.full((9, 9), torch.finfo(torch.float32).min).triu(1))
        # A padded row sees nothing.
        self.mask[2] = torch.finfo(torch.float32).min

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        cos, sin = self.rotary(x)
        q, k = (each * cos + each.roll(WIDTH // 2, -1) * sin for each in (q, k))
        scores = q @ k.transpose(1, 2) / 4 + self.mask
        return self.head(functional.scaled_dot_product_attention(q, k, v) + scores.softmax(-1) @ v)


class Frozen(nn.Module):
    """As detectors freeze normalisation: rows of numbers without a parameter."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("weight", 1.3), ("bias", 0.2), ("running_mean", 0.1), ("running_var", 0.7)):
            self.register_buffer(name, torch.full((8,), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale.view(1, -1, 1, 1) + (self.bias - self.running_mean * scale).view(1, -1, 1, 1)


def convolutions(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), norm(), nn.ReLU(), nn.Conv2d(8, 8, 3), norm(), nn.Flatten(), nn.Linear(8 * 16, 3)
    )


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return transformers.BertForMaskedLM(config)


def vit() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )
    return transformers.ViTForImageClassification(config)


PICTURES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(2))


class Timed(nn.Module):
    """Sines of integers, which are inexact in bf16, combined with computed values."""

    class Sines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rates", torch.exp(-torch.arange(WIDTH // 2) / 4.0))

        def forward(self, times: torch.Tensor) -> torch.Tensor:
            angles = times[..., None] * self.rates
            return torch.cat([angles.sin(), angles.cos()], -1)

    def __init__(self) -> None:
        super().__init__()
        self.sines, self.of_times, self.head = Timed.Sines(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.of_times(self.sines(tokens)).tanh())


class Scaled(nn.Module):
    """Subtracts the mean of images, and has angles and weights in the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(0, 1, 3).view(3, 1, 1))
        self.register_buffer("spread", torch.tensor([0.5, 1.0, 2.0, 1.0]))
        self.patch, self.weight = nn.Conv2d(3, 4, 4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x - self.mean).flatten(2).transpose(1, 2) * (self.weight / self.spread)
        return functional.scaled_dot_product_attention(x, x, x / self.spread)


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, set[str]]] = {
    "positions in a table": (PositionTable, PICTURES, set()),
    "rotated": (Turned, TOKENS, {"rotary.inv_freq"}),
    "times": (Timed, TOKENS, {"sines.rates"}),
    "pictures that are scaled": (Scaled, PICTURES, set()),
    "batch normalisation": (
        lambda: convolutions(lambda: nn.BatchNorm2d(8)),
        PICTURES,
        {f"{at}.{name}" for at in (1, 4) for name in ("running_mean", "running_var")},
    ),
    "without weights": (
        lambda: convolutions(lambda: nn.BatchNorm2d(8, affine=False)),
        PICTURES,
        {f"{at}.{name}" for at in (1, 4) for name in ("running_mean", "running_var")},
    ),
    "of instances": (
        lambda: convolutions(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
        PICTURES,
        {f"{at}.{name}" for at in (1, 4) for name in ("running_mean", "running_var")},
    ),
    "frozen normalisation": (
        lambda: convolutions(Frozen),
        PICTURES,
        {f"{at}.{name}" for at in (1, 4) for name in ("weight", "bias", "running_mean", "running_var")},
    ),
    "Llama": (llama, TOKENS, {"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"}),
    "BERT": (bert, TOKENS, set()),
    "ViT": (vit, PICTURES, set()),
}


def answer(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out = model(batch)
    return getattr(out, "logits", out)


def train(target: Target, batch: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        answer(target.model, target.prepare(batch)).float().square().mean().backward()
        for optimizer in target.optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("name", MODELS)
def test_ordinary_models_run_in_bf16_and_stay_right(name: str) -> None:
    build, batch, wide = MODELS[name]
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    plain = Target(twin, [torch.optim.AdamW(twin.parameters(), lr=1e-3)])
    target = Target(model, [torch.optim.AdamW(model.parameters(), lr=1e-3)])
    before = {key: buffer.clone() for key, buffer in model.named_buffers()}
    weights, forwards = flat(model), [id(type(each)) for each in model.modules()]
    applied = _levers.apply(target, [("pure-bf16", True)])
    kinds = {key for key, buffer in model.named_buffers() if buffer.dtype == torch.float32}
    assert kinds >= {key for key in wide if key in before}, "what is computed with keeps its digits"
    for key in kinds:
        assert torch.equal(dict(model.named_buffers())[key], before[key])
    with torch.no_grad():
        near, right = answer(model, target.prepare(batch)), answer(twin, batch)
    assert near.dtype == torch.bfloat16, "activations are as small as they can be"
    assert bool(near.isfinite().all())
    assert float((near - right).abs().max()) < 0.04 * float(right.abs().max()) + 0.02
    train(target, batch, 3)
    train(plain, batch, 3)
    for (key, one), other in zip(model.named_buffers(), twin.buffers(), strict=True):
        if key in kinds and one.is_floating_point():
            assert float((one - other).abs().max()) < 0.02 * (1 + float(other.abs().max())), key
    assert all(bool(each.isfinite().all()) for each in model.parameters())
    applied.undo()
    assert [id(type(each)) for each in model.modules()] == forwards
    assert all("forward" not in vars(each) for each in model.modules())
    for key, buffer in model.named_buffers():
        assert buffer.dtype == before[key].dtype
        if not key.endswith(("running_mean", "running_var", "tracked")) or "frozen" in name:
            assert torch.equal(buffer, before[key]), key
    assert not torch.equal(flat(model), weights)


def test_statistics_that_move_by_less_than_bf16_can_tell_move() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=1e-3))
    with torch.no_grad():
        model[1].running_mean.fill_(1.0)
    applied = _levers.apply(Target(model, []), [("pure-bf16", True)])
    for _ in range(300):
        model(torch.randn(6, 4, dtype=torch.bfloat16))
    assert float(model[1].running_mean.max()) < 0.9
    applied.undo()


def test_a_parameter_without_dimensions_counts_its_steps_in_full() -> None:
    """As the scale of a contrastive model's logits."""
    model = nn.Linear(4, 4)
    model.scale = nn.Parameter(torch.tensor(2.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    applied = _levers.apply(Target(model, [optimizer]), [("pure-bf16", True)])
    for _ in range(300):
        (model(torch.ones(1, 4, dtype=torch.bfloat16)).sum() * 0 + model.scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state[model.scale]
    assert (float(state["step"]), state["step"].shape) == (300.0, ())
    assert state["exp_avg"].dtype == torch.float32
    assert float(model.scale.detach()) == pytest.approx(2.5 - 300 * 1e-4, abs=0.07)
    assert optimizer.state_dict()["state"][2]["exp_avg"].shape == ()
    applied.undo()
    assert math.isfinite(float(model.scale.detach()))


def test_weights_that_were_in_bf16_before_are_rounded_by_chance_and_have_their_moments_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, dtype=torch.bfloat16), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        x = model[0](torch.ones(2, 64, dtype=torch.bfloat16))
        model[1](x.to(model[1].weight.dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    kinds = [value.dtype for state in optimizer.state.values() for value in state.values()]
    applied = _levers.apply(Target(model, [optimizer]), [("pure-bf16", True)])
    step()
    applied.undo()
    assert [value.dtype for state in optimizer.state.values() for value in state.values()] == kinds
    step()
