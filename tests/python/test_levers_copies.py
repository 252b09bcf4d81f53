"""Copies of models that levers are on, and what is saved of these and loaded into them."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from lever_models import TOKENS, Language, language_loss, target_of, traces, train
from memfit import _levers
from torch import nn
from training import flat

LEVERS: dict[str, list[tuple[str, Any]]] = {
    "checkpointing": [("checkpointing", "blocks")],
    "sdpa": [("sdpa", True)],
    "chunked-loss": [("chunked-loss", 7)],
    "several": [("sdpa", True), ("chunked-loss", 7), ("checkpointing", "blocks")],
    "compiled": [("compile", {"backend": "eager"}), ("checkpointing", "blocks")],
    "lora": [("lora", 2)],
    "quantized-base": [("lora", 2), ("quantized-base", "8-bit")],
}
# Levers that hold part of the weights.
PARTS = ("lora", "quantized-base")


def outputs(model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(TOKENS)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    model.train()
    language_loss(model, TOKENS).backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


@pytest.mark.parametrize("chosen", LEVERS.values(), ids=LEVERS)
def test_a_copy_computes_with_its_own_weights(chosen: list[tuple[str, Any]]) -> None:
    torch.manual_seed(0)
    model = Language(0.0)
    target = target_of(model)
    marks = traces(model, target.optimizers[0])
    applied = _levers.apply(target, chosen)
    train(target, 1)
    best = copy.deepcopy(model)
    expected, wanted = outputs(model), gradients(model)
    assert torch.equal(outputs(best), expected)

    model.train()
    train(target, 2)
    assert not torch.equal(outputs(model), expected)
    assert torch.equal(outputs(best), expected), "later training is not the copy's"
    found = gradients(best)
    assert len(found) == len(wanted)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, wanted, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())

    # A copy of the copy as well, and all of them when the original has its levers no longer.
    again = copy.deepcopy(best)
    applied.undo()
    assert traces(model, target.optimizers[0]) == marks
    assert torch.equal(outputs(best), expected)
    assert torch.equal(outputs(again), expected)
    train(target, 1)
    assert torch.equal(outputs(again), expected)
    torch._dynamo.reset()


def test_an_average_of_models_is_of_them() -> None:
    torch.manual_seed(0)
    target = target_of(Language(0.0))
    applied = _levers.apply(target, [("checkpointing", "blocks"), ("chunked-loss", 7)])
    averaged = torch.optim.swa_utils.AveragedModel(target.model)
    averaged.update_parameters(target.model)
    train(target, 2)
    averaged.update_parameters(target.model)
    applied.undo()
    plain = Language(0.0)
    plain.load_state_dict(averaged.module.state_dict())
    assert torch.equal(outputs(averaged), outputs(plain))
    assert not torch.equal(outputs(averaged), outputs(target.model))


@pytest.mark.parametrize(("name", "chosen"), LEVERS.items(), ids=LEVERS)
def test_a_module_is_pickled_without_its_levers_or_says_why_not(
    name: str, chosen: list[tuple[str, Any]]
) -> None:
    torch.manual_seed(0)
    target = target_of(Language(0.0))
    applied = _levers.apply(target, chosen)
    train(target, 1)
    saved = io.BytesIO()
    if name in PARTS:
        with pytest.raises(pickle.PicklingError, match="state_dict"):
            torch.save(target.model, saved)
        applied.undo()
        saved = io.BytesIO()
    torch.save(target.model, saved)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=False)
    assert torch.allclose(outputs(loaded), outputs(target.model), atol=1e-5)
    model = target_of(loaded)
    marks = traces(loaded, model.optimizers[0])
    again = _levers.apply(model, chosen)
    assert torch.allclose(outputs(loaded), outputs(target.model), atol=0.1)
    again.undo()
    assert traces(loaded, model.optimizers[0]) == marks
    torch._dynamo.reset()


def test_wraps_are_undone_in_any_order_also_when_a_copy_was_made() -> None:
    target = target_of(Language(0.0))
    expected = outputs(target.model)
    first = _levers.apply(target, [("lora", 2)])
    second = _levers.apply(target, [("checkpointing", ["blocks.0.mlp.0"])])
    copied = copy.deepcopy(target.model)
    first.undo()
    assert torch.equal(outputs(target.model), expected)
    second.undo()
    assert torch.equal(outputs(target.model), expected)
    assert torch.equal(outputs(copied), expected)


@pytest.mark.parametrize("chosen", [LEVERS[name] for name in PARTS], ids=PARTS)
def test_checkpoints_keep_their_meaning(chosen: list[tuple[str, Any]]) -> None:
    torch.manual_seed(0)
    model = Language(0.0)
    before = {name: (value.shape, value.dtype) for name, value in model.state_dict().items()}
    target = target_of(model)
    marks = traces(model, target.optimizers[0])
    applied = _levers.apply(target, chosen)
    train(target, 3)
    saved = copy.deepcopy(model.state_dict())
    assert {name: (value.shape, value.dtype) for name, value in saved.items()} == before
    plain = Language(0.0)
    plain.load_state_dict(saved)
    assert torch.allclose(outputs(plain), outputs(model), atol=1e-5), "what is saved was trained"

    # State saved by another training run is loaded normally, and this one continues from it.
    torch.manual_seed(1)
    other = target_of(Language(0.0))
    train(other, 2)
    model.train()
    train(target, 1)
    model.load_state_dict(other.model.state_dict())
    near = 0.1 if len(chosen) > 1 else 1e-6
    assert torch.allclose(outputs(model), outputs(other.model), atol=near)
    model.load_state_dict({name: value for name, value in saved.items() if "norm" in name}, strict=False)
    model.train()
    losses = train(target, 5)
    assert losses[-1] < losses[0]
    expected = outputs(model)
    applied.undo()
    assert traces(model, target.optimizers[0]) == marks
    assert torch.allclose(outputs(model), expected, atol=near)


def test_loaded_weights_are_there_after_unquantizing() -> None:
    torch.manual_seed(0)
    model, other = Language(0.0), Language(0.0)
    applied = _levers.apply(target_of(model), [("quantized-weights", "4-bit")])
    model.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"size mismatch for blocks\.0\.mlp\.0\.weight"):
        model.load_state_dict({**other.state_dict(), "blocks.0.mlp.0.weight": torch.zeros(2, 2)})
    applied.undo()
    assert torch.equal(flat(model), flat(other))
