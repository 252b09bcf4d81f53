"""Levers on layers of transformers' class `Conv1D`, whose weight is transposed, as in GPT-2."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lever_models import adam
from memfit import shrink
from memfit._levers import Target
from memfit._levers.transposed import as_linear, is_transposed, linear_layers
from torch import nn
from training import flat

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TOKENS = torch.randint(0, 100, (4, 12), generator=torch.Generator().manual_seed(0))
LAYERS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def network() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=100,
        n_positions=16,
        n_embd=64,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(config)


def logits(model: nn.Module) -> torch.Tensor:
    return model(input_ids=TOKENS).logits


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()


def test_the_layers_of_the_blocks_are_found_and_a_shared_head_is_not() -> None:
    found = linear_layers(network())
    assert list(found) == [f"transformer.h.{block}.{layer}" for block in (0, 1) for layer in LAYERS]
    assert all(map(is_transposed, found.values()))
    own = type("Conv1D", (nn.Module,), {"__module__": "somewhere.else"})
    assert not is_transposed(own())


@pytest.mark.parametrize("quantized", [False, True])
def test_adapters_learn_and_are_merged_in_the_weight_s_own_order(quantized: bool) -> None:
    model = network()
    before, optimizer = copy.deepcopy(model), adam(model)
    change = shrink.qlora if quantized else shrink.lora
    applied = change(model, optimizer, rank=4)
    near = 0.15 if quantized else 1e-6
    assert float((logits(model) - logits(before)).detach().abs().max()) < near
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {
        f"transformer.h.{block}.{layer}.memfit_lora_{side}"
        for block in (0, 1)
        for layer in LAYERS
        for side in ("down", "up")
    } | {"transformer.ln_f.weight", "transformer.ln_f.bias"}
    train(model, optimizer)
    expected = logits(model)
    assert float((expected - logits(before)).detach().abs().max()) > near
    loaded = network()
    loaded.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    applied.undo()
    assert list(model.state_dict()) == list(before.state_dict())
    if not quantized:
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)


def test_gradients_through_a_quantized_weight_are_those_of_the_weight_it_stands_for() -> None:
    model = network()
    shrink.quantized_weights(model, bits=8)
    plain = network()
    plain.load_state_dict(model.state_dict())
    results = []
    for each in (model, plain):
        each(input_ids=TOKENS, labels=TOKENS).loss.backward()
        results.append(each.transformer.wpe.weight.grad)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
    assert all(layer.weight.numel() == 0 for layer in linear_layers(model).values())


def test_masks_keep_half_of_the_weights() -> None:
    model = network()
    optimizer = adam(model)
    applied = shrink.prune_masks(model, optimizer, percent=50)
    train(model, optimizer)
    logits(model)
    weight = model.transformer.h[0].mlp.c_fc.weight
    assert int((weight == 0).sum()) == weight.numel() // 2
    applied.undo()
    assert isinstance(model.transformer.h[0].mlp.c_fc.weight, nn.Parameter)


def test_linear_layers_stand_in_and_what_they_learn_is_turned_back() -> None:
    model = network()
    plain = copy.deepcopy(model)
    optimizers = [adam(model), adam(plain)]
    expected = flat(model)
    undo = as_linear(Target(model, optimizers[:1]))
    layer: Any = model.transformer.h[0].mlp.c_fc
    assert type(layer) is nn.Linear
    assert layer.weight.shape == (256, 64)
    assert not any(map(is_transposed, model.modules()))
    torch.testing.assert_close(logits(model), logits(plain))
    held = {id(each) for each in optimizers[0].param_groups[0]["params"]}
    assert held == {id(each) for each in model.parameters()}
    for each, optimizer in zip((model, plain), optimizers, strict=True):
        train(each, optimizer)
    undo()
    assert not torch.equal(flat(model), expected)
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-4, atol=1e-5)
    assert {id(each) for each in optimizers[0].param_groups[0]["params"]} == {
        id(each) for each in model.parameters()
    }
    assert as_linear(Target(nn.Sequential(nn.Linear(2, 2))))() is None
