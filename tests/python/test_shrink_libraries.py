"""Techniques of `memfit shrink` that need a library: `make shrink` installs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lever_models import TOKENS, Language, adam
from memfit import shrink
from runs import MIB
from test_shrink import ADAPTERS, ALL, HEAD, MATRICES, NORM, SCRIPT
from test_shrink import shrink as measured
from training import flat

LIBRARIES = {"peft": "dora", "torchao": "torchao-int8", "torch_pruning": "prune-channels"}
for library in LIBRARIES:
    pytest.importorskip(library, reason="`make shrink` installs peft, torchao and torch-pruning")

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
    found = rows(tmp_path, SCRIPT, "dora,torchao-int8,torchao-fp8", "h100-sxm")
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
