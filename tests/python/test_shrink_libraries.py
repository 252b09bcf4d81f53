"""Techniques of `memfit shrink` that need a library: `make shrink` installs them."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lever_models import TOKENS, Language, adam
from memfit import _levers, shrink
from memfit._levers import Target
from memfit._levers.transposed import linear_layers
from runs import MIB
from test_levers_transposed import logits, network, train
from test_shrink import ADAPTERS, ALL, HEAD, MATRICES, NORM, SCRIPT
from test_shrink import shrink as measured
from training import flat

for library in ("peft", "torchao", "torch_pruning", "bitsandbytes", "pytorch_optimizer"):
    pytest.importorskip(library, reason="`make shrink` installs the libraries of requirements/shrink.txt")

CONVOLUTIONS = """
import torch
from torch import nn
model = nn.Sequential(
    nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128),
    nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.zeros(8, 3, 64, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
HALVED = (3 * 32 * 9 + 32) + 2 * 32 + (32 * 64 * 9 + 64) + 2 * 64 + (64 * 10 + 10)


def rows(folder: Path, script: str, only: str, gpu: str) -> dict[str, dict[str, Any]]:
    (folder / "train.py").write_text(script)
    document = measured(folder, "--gpu", gpu, "--only", only, "--", sys.executable, "train.py")
    found = {row["technique"]: row for row in [document["baseline"], *document["rows"]]}
    assert all(row["training"] or row["inference"] for row in found.values()), found
    return found


def test_pruned_channels_shrink_layers_gradients_and_state(tmp_path: Path) -> None:
    found = rows(tmp_path, CONVOLUTIONS, "prune-channels", "t4")
    row = found["prune-channels"]
    assert (row["parameters"], row["trained"]) == (HALVED, HALVED)
    assert row["bytes"] == {"weights": 4 * HALVED, "gradients": 4 * HALVED, "optimizer": 8 * HALVED}
    # Feature maps are halved, which is nearly all memory here.
    for column in ("training", "inference"):
        before, after = (found[name][column]["allocated"] for name in ("none", "prune-channels"))
        assert after < 0.7 * before, column


def test_adapters_and_quantized_weights_are_counted(tmp_path: Path) -> None:
    found = rows(tmp_path, SCRIPT, "dora,torchao-int8,torchao-fp8,torchao-qlora", "h100-sxm")
    magnitudes = 4 * (768 + 256 + 1024 + 256)
    row = found["dora"]
    assert (row["parameters"], row["trained"]) == (ALL + ADAPTERS + magnitudes, ADAPTERS + magnitudes + NORM)
    assert row["bytes"]["optimizer"] == 8 * (ADAPTERS + magnitudes + NORM)
    # torchao quantizes the head, too, with a scale for each row.
    quantized, scales = MATRICES + HEAD - 1000, 4 * (768 + 256 + 1024 + 256) + 1000
    for name in ("torchao-int8", "torchao-fp8"):
        row = found[name]
        assert row["parameters"] == ALL
        weights = 4 * (ALL - quantized) + quantized
        assert weights <= row["bytes"]["weights"] <= weights + 8 * scales
        less = found["none"]["inference"]["allocated"] - row["inference"]["allocated"]
        # Two matrices of 1 MiB at most are dequantized at once, and their product with the scales.
        assert abs(3 * quantized - less) <= 3 * MIB
    row = found["torchao-qlora"]
    # The head keeps its precision.
    outputs = scales - 1000
    weights = 4 * (ALL - MATRICES + ADAPTERS) + MATRICES
    assert (row["parameters"], row["trained"]) == (ALL + ADAPTERS, ADAPTERS + NORM)
    assert weights <= row["bytes"]["weights"] <= weights + 8 * outputs
    assert row["bytes"]["optimizer"] == 8 * (ADAPTERS + NORM)


@pytest.mark.parametrize("name", ["dora", "peft_qlora", "torchao_qlora", "qat", "float8_training"])
def test_transposed_layers_are_trained_and_come_back(name: str) -> None:
    model = network()
    before, expected = copy.deepcopy(model), logits(model)
    kinds, names = [type(each) for each in model.modules()], list(model.state_dict())
    optimizer = adam(model)
    adapts = name in ("dora", "peft_qlora", "torchao_qlora")
    change = getattr(shrink, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = change(model, optimizer, rank=4) if adapts else change(model)
    if not adapts:
        optimizer = adam(model)
    if name != "float8_training":
        assert float((logits(model) - expected).detach().abs().max()) < (1e-5 if name == "dora" else 0.3)
        train(model, optimizer, 1)
    assert [type(each) for each in model.modules()] != kinds
    applied.undo()
    assert [type(each) for each in model.modules()] == kinds
    assert list(model.state_dict()) == names
    # Adapters are dropped, and what `qat` trained stays.
    for one, two in zip(linear_layers(model).values(), linear_layers(before).values(), strict=True):
        assert torch.equal(one.weight, two.weight) == (name != "qat")


def test_transposed_layers_are_quantized_for_inference() -> None:
    model = network()
    before, expected = flat(model), logits(model)
    applied = shrink.torchao_weights(model, "int8")
    found = logits(model)
    assert 0 < float((found - expected).detach().abs().max()) < 0.05
    assert model.transformer.h[0].mlp.c_fc.weight.shape == (256, 64)
    applied.undo()
    assert torch.equal(flat(model), before)
    assert torch.equal(logits(model), expected)


def test_adapters_of_peft_begin_as_nothing_and_are_dropped() -> None:
    model = Language(0.0)
    before, names, optimizer = flat(model), list(model.state_dict()), adam(model)
    expected = model(TOKENS)
    applied = shrink.dora(model, optimizer, rank=2)
    torch.testing.assert_close(model(TOKENS), expected)
    assert all("lora_" in name for name, each in model.named_parameters() if each.requires_grad)
    model(TOKENS).sum().backward()
    optimizer.step()
    assert not torch.equal(model(TOKENS), expected)
    applied.undo()
    assert torch.equal(flat(model), before)
    assert list(model.state_dict()) == names
    assert all(each.requires_grad for each in model.parameters())
    assert {id(each) for each in optimizer.param_groups[0]["params"]} == {
        id(each) for each in model.parameters()
    }


@pytest.mark.parametrize(("kind", "near"), [("int8", 0.05), ("fp8", 0.3)])
def test_weights_quantized_by_torchao_come_back(kind: Any, near: float) -> None:
    torch.manual_seed(0)
    model = Language(0.0)
    before, expected = flat(model), model(TOKENS)
    applied = shrink.torchao_weights(model, kind)
    found = model(TOKENS)
    assert not torch.equal(found, expected)
    assert float((found - expected).detach().abs().max()) < near
    applied.undo()
    assert torch.equal(flat(model), before)
    assert torch.equal(model(TOKENS), expected)


# A script whose matrices are as wide as the int4 format's padding, and whose tokens come from a loader.
WIDE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(1024), nn.Linear(1024, 2048), nn.Linear(2048, 1024)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(512, 1024)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return x

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for (x,) in DataLoader(TensorDataset(torch.zeros(12, 256, dtype=torch.long)), batch_size=4):
    loss = model(x.cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WIDE_MATRICES, WIDE_REST = 3 * 2 * 1024 * 2048, 512 * 1024 + 3 * (2 * 1024 + 2048 + 1024)


def test_formats_of_16_bit_models_take_what_they_say(tmp_path: Path) -> None:
    only = "bf16-weights,torchao-int4,semi-structured,low-rank-gradients,shorter-sequences,peft-qlora,qat"
    found = rows(tmp_path, WIDE, only, "a100-80gb")
    held = {name: row["bytes"]["weights"] for name, row in found.items()}
    assert held["none"] == 4 * (WIDE_MATRICES + WIDE_REST)
    assert held["bf16-weights"] == 2 * (WIDE_MATRICES + WIDE_REST)
    # Four bits for each weight, and two numbers in bf16 for each 32.
    assert held["torchao-int4"] == WIDE_MATRICES // 2 + 4 * (WIDE_MATRICES // 32) + 2 * WIDE_REST
    # Half of the weights in 16 bits, and two bits for the place of each.
    assert held["semi-structured"] == WIDE_MATRICES + WIDE_MATRICES // 8 + 2 * WIDE_REST
    for name in ("torchao-int4", "semi-structured"):
        less = found["none"]["inference"]["allocated"] - found[name]["inference"]["allocated"]
        # The activations, too, have 16 bits. A sparse product copies its input and its output, which are of
        # 2 and 4 MiB at most.
        assert held["none"] - held[name] - 6 * MIB <= less <= held["none"] - held[name] + 32 * MIB, name
        assert found[name]["training"] is None
    # The projections are 3 x 2 matrices of 128 by 1024, and the moments of 3 x 2 of 128 by 2048.
    row = found["low-rank-gradients"]
    assert row["bytes"]["optimizer"] == 4 * 6 * 128 * (1024 + 2 * 2048) + 8 * WIDE_REST
    assert (row["trained"], held["low-rank-gradients"]) == (WIDE_MATRICES + WIDE_REST, held["none"])
    assert row["inference"] == found["none"]["inference"]
    # A sequence of 128 tokens instead of 256: activations are halved, and all else stays.
    row = found["shorter-sequences"]
    assert row["levers"] == [{"name": "shorter-sequences", "value": 128}]
    assert row["bytes"] == found["none"]["bytes"]
    assert row["training"]["allocated"] < found["none"]["training"]["allocated"]
    # Rounding in the forward pass takes memory, and the row says so.
    row = found["qat"]
    assert row["bytes"] == found["none"]["bytes"]
    assert "saves nothing in training: tensors take" in row["note"]
    quantized = WIDE_MATRICES + 8 * (WIDE_MATRICES // 32)
    less = found["none"]["inference"]["allocated"] - row["inference"]["allocated"]
    # One matrix is dequantized at once.
    assert 0 < less <= 4 * WIDE_MATRICES - quantized
    # Adapters of rank 16 on each side of each matrix.
    row = found["peft-qlora"]
    adapters = 6 * 16 * (1024 + 2048)
    assert row["parameters"] == WIDE_MATRICES + WIDE_REST + adapters
    assert row["bytes"]["optimizer"] == 8 * adapters
    # NF4 has a scale in 8 bits for each 64 weights, and one for 256 of these in 32 bits.
    scales = WIDE_MATRICES // 64 + 4 * (WIDE_MATRICES // 64 // 256)
    packed = WIDE_MATRICES // 2 + scales + 4 * (WIDE_REST + adapters)
    # Beside tables of 16 and 256 numbers, and one offset, for each matrix.
    assert packed <= held["peft-qlora"] <= packed + 6 * 2 * 1024


def test_float8_saves_nothing_worth_it_without_a_compiler(tmp_path: Path) -> None:
    found = rows(tmp_path, WIDE, "float8-training", "h100-sxm")
    row, before = found["float8-training"], found["none"]
    assert row["bytes"] == before["bytes"]
    assert row["training"]["allocated"] > 0.95 * before["training"]["allocated"]


def test_sparse_products_need_a_card_that_has_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WIDE)
    arguments = ("--gpu", "h100-sxm", "--only", "semi-structured", "--", sys.executable, "train.py")
    (row,) = measured(tmp_path, *arguments)["rows"]
    assert row["inference"] is None
    assert "compute capability 8.x" in row["note"]


@pytest.mark.parametrize(
    "name", ["qat", "float8-training", "peft-qlora", "torchao-qlora", "low-rank-gradients"]
)
def test_layers_of_a_library_learn_and_can_be_removed(name: str) -> None:
    torch.manual_seed(0)
    model = Language(0.0)
    for block in model.blocks:
        # Sides that torchao's formats and a rank of 8 need.
        block.mlp = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    model.body = torch.nn.Linear(16, 32)
    names, kinds = list(model.state_dict()), [type(each) for each in model.modules()]
    optimizer = adam(model)
    kind = type(optimizer)
    target = Target(model, [optimizer])
    applied = _levers.apply(
        target, [(name, "int4" if name == "qat" else 8 if name != "float8-training" else True)]
    )
    before = [each.detach().clone() for each in model.parameters() if each.requires_grad]
    model(TOKENS).square().mean().backward()
    optimizer.step()
    after = [each for each in model.parameters() if each.requires_grad]
    assert any(not torch.equal(one, two) for one, two in zip(before, after, strict=True))
    applied.undo()
    assert list(model.state_dict()) == names
    assert [type(each) for each in model.modules()] == kinds
    assert type(optimizer) is kind
    assert {id(each) for each in optimizer.param_groups[0]["params"]} == {
        id(each) for each in model.parameters()
    }


def test_a_vocabulary_that_is_shared_stays_one_matrix() -> None:
    model = Language(0.0)
    model.head.weight = model.embed.weight
    applied = shrink.torchao_weights(model, "int8")
    assert model.head.weight is model.embed.weight
    assert type(model.blocks[0].mlp[0].weight) is not torch.nn.Parameter
    applied.undo()
