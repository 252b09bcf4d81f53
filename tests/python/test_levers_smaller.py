"""Levers that make a model smaller, or train a part of it: what is left, what learns, what it computes."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from lever_models import CLASSES, PICTURES, TOKENS, WIDTH, Language, Pictures, adam, target_of, train
from memfit import _levers, shrink
from memfit._levers import CannotApply, Target
from torch import nn
from training import flat


def trained(model: nn.Module) -> set[str]:
    """The names of the parameters that learn."""
    return {name for name, each in model.named_parameters() if each.requires_grad}


def moved(part: str, model: nn.Module) -> set[str]:
    """Trains a part of a model; the names of the parameters that changed."""
    target = target_of(model)
    train(target, 1)
    before = copy.deepcopy(model.state_dict())
    (optimizer,) = target.optimizers
    _levers.apply(target, [("train-only", part)])
    kept = {id(each) for each in model.parameters() if each.requires_grad}
    # Moments of earlier steps would move frozen parameters, and fill memory.
    assert {id(each) for each in optimizer.state} <= kept
    train(target, 1)
    assert all(each.grad is None for each in model.parameters() if not each.requires_grad)
    return {
        name
        for name, _ in model.named_parameters()
        if not torch.equal(before[name], model.state_dict()[name])
    }


def test_a_part_learns_and_the_rest_stays() -> None:
    names = dict(Pictures().named_parameters())
    assert moved("head", Pictures()) == {"head.weight", "head.bias"}
    last = {name for name in names if name.startswith(("body.1.", "head."))}
    # What follows a batch normalisation does not move the bias in front of it.
    assert last - {"body.1.0.bias"} <= moved("last-1-block", Pictures()) <= last
    head = {"head.weight", "head.bias"}
    norms = {f"body.{place}.1.{kind}" for place in (0, 1) for kind in ("weight", "bias")}
    assert moved("norms", Pictures()) == norms | head
    model = Pictures()
    _levers.apply(target_of(model), [("train-only", "biases")])
    assert trained(model) == {name for name in names if name.endswith("bias")} | head


def test_a_vocabulary_is_no_new_head() -> None:
    model = Language()
    _levers.apply(target_of(model), [("train-only", "norms")])
    assert trained(model) == {
        f"blocks.{place}.norm.{kind}" for place in range(3) for kind in ("weight", "bias")
    }
    model = Language()
    _levers.apply(target_of(model), [("train-only", "head")])
    assert trained(model) == {"head.weight"}


def test_nothing_to_freeze_is_refused() -> None:
    with pytest.raises(CannotApply, match="nothing but its head"):
        _levers.apply(Target(nn.Linear(2, 2)), [("train-only", "head")])
    frozen = Language().requires_grad_(False)
    frozen.head.requires_grad_(True)
    with pytest.raises(CannotApply, match="no norms that are trained"):
        _levers.apply(Target(frozen), [("train-only", "norms")])
    with pytest.raises(CannotApply, match="no sequence of blocks"):
        _levers.apply(Target(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))), [("fewer-blocks", 50)])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("train-only", "tail", "last-2-blocks"),
        ("train-only", "last-7-blocks", "the model has 3 repeated blocks"),
        ("prune-masks", 100, "between 1 and 99"),
        ("fewer-blocks", True, "between 1 and 99"),
        ("torchao-weights", "int3", "int8"),
        ("dora", 0, "at least 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(name: str, value: object, text: str) -> None:
    with pytest.raises(CannotApply, match=text):
        _levers.apply(target_of(Language()), [(name, value)])


def test_attention_uses_the_weights_of_a_layer_that_it_does_not_call() -> None:
    """A mask on such a layer would keep the graph of one product for all passes."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    _levers.apply(Target(layer), [("prune-masks", 50)])
    for _ in range(2):
        layer(torch.randn(2, 3, 16)).sum().backward()
    assert [name for name, _ in layer.named_buffers()] == ["linear1.weight_mask", "linear2.weight_mask"]


def test_masked_weights_are_zero_in_every_pass() -> None:
    model = Pictures()
    plain = copy.deepcopy(model)
    target = target_of(model)
    applied = _levers.apply(target, [("prune-masks", 50)])
    weight = model.head.weight
    assert int((weight == 0).sum()) == weight.numel() // 2
    smallest = plain.head.weight.abs().flatten().topk(weight.numel() // 2, largest=False).values.max()
    assert bool((weight[plain.head.weight.abs() > smallest] != 0).all())
    train(target, 2)
    model(PICTURES[0])
    assert int((model.head.weight == 0).sum()) == weight.numel() // 2
    applied.undo()
    assert list(dict(model.named_parameters())) == list(dict(plain.named_parameters()))
    assert not model.head._forward_pre_hooks


@pytest.mark.parametrize(("percent", "kept"), [(67, [0, 1]), (34, [0]), (1, [0]), (99, [0, 1, 2])])
def test_evenly_spaced_blocks_are_kept(percent: int, kept: list[int]) -> None:
    model = Language()
    original, optimizer = list(model.blocks), adam(model)
    if len(kept) == 3:
        with pytest.raises(CannotApply):
            _levers.apply(Target(model, [optimizer]), [("fewer-blocks", percent)])
        return
    applied = _levers.apply(Target(model, [optimizer]), [("fewer-blocks", percent)])
    assert list(model.blocks) == [original[place] for place in kept]
    assert list(model.blocks._modules) == [str(place) for place in range(len(kept))]
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters()}
    applied.undo()
    assert list(model.blocks) == original
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def test_a_block_of_another_shape_stays() -> None:
    def row(*widths: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths))
        )

    model = row(4, 8, 8, 8, 4)
    _levers.apply(Target(model), [("fewer-blocks", 50)])
    assert [block[0].weight.shape for block in model] == [(8, 4), (8, 8), (4, 8)]
    assert model(torch.ones(1, 4)).shape == (1, 4)


class Convolutions(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip


def test_channels_are_removed_and_come_back() -> None:
    pytest.importorskip("torch_pruning", reason="`make shrink` installs torch-pruning")
    model = Convolutions()
    before, names = flat(model), list(model.state_dict())
    optimizer = adam(model)

    def held() -> bool:
        groups = {id(each) for group in optimizer.param_groups for each in group["params"]}
        return groups == {id(each) for each in model.parameters()}

    example = torch.randn(2, 3, 16, 16)
    halved = (3 * 32 * 9 + 32) + 2 * 32 + (32 * 64 * 9 + 64) + 2 * 64 + (64 * 10 + 10)
    for trains in (False, True):
        applied = shrink.prune_channels(model, example, optimizer, percent=50)
        assert sum(each.numel() for each in model.parameters()) == halved
        assert held()
        if trains:
            model(example).square().sum().backward()
            optimizer.step()
        assert all(each.requires_grad for each in model.parameters())
        applied.undo()
        assert held()
        assert list(model.state_dict()) == names
        # The output layer's bias keeps its size, and what it learned.
        assert torch.equal(flat(model)[: -model[8].bias.numel()], before[: -model[8].bias.numel()])
    assert model(example).shape == (2, 10)


def test_channels_need_the_library_and_a_call() -> None:
    target = Target(Convolutions())
    with pytest.raises(CannotApply, match=r"pip install torch-pruning|arguments of a call"):
        _levers.apply(target, [("prune-channels", 50)])


# The functions for the user's own code.


def test_each_function_applies_its_levers() -> None:
    for function, arguments, names in (
        (shrink.lora, {"rank": 2}, ["lora"]),
        (shrink.qlora, {"rank": 2, "bits": 8}, ["quantized-base", "lora"]),
        (shrink.bf16_weights, {}, ["pure-bf16", "inputs"]),
        (shrink.eight_bit_optimizer, {}, ["8-bit-optimizer"]),
        (shrink.prune_masks, {"percent": 20}, ["prune-masks"]),
        (shrink.fewer_blocks, {"percent": 40}, ["fewer-blocks"]),
    ):
        model = Language()
        optimizer = adam(model)
        parameters = len(optimizer.param_groups[0]["params"])
        applied = function(model, optimizer, **arguments)  # type: ignore[operator]
        assert applied.names == names
        model(TOKENS).sum().backward()
        optimizer.step()
        applied.undo()
        assert len(optimizer.param_groups[0]["params"]) == parameters
    model = Language()
    assert shrink.train_only(model, "head").names == ["train-only"]
    assert trained(model) == {"head.weight"}
    shrink.quantized_weights(model, bits=4)
    assert model.blocks[0].mlp[0].weight.numel() == 0
    assert model(TOKENS).shape == (4, 12, CLASSES)
    assert model.embed.weight.shape == (CLASSES, WIDTH)
