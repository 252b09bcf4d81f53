"""Models made smaller, saved in the formats of the libraries that made them, and loaded by a process in which
memfit cannot be imported: they return what they returned before.
"""

from __future__ import annotations

import copy
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from lever_models import adam
from memfit import shrink
from torch import nn
from torch.nn.utils import prune

MODEL = """
import torch
from torch import nn

def linear(inputs, outputs, turned):
    if not turned:
        return nn.Linear(inputs, outputs)
    from transformers.pytorch_utils import Conv1D
    return Conv1D(outputs, inputs)

class Block(nn.Module):
    def __init__(self, width, turned):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = linear(width, 2 * width, turned), linear(2 * width, width, turned)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self, turned=False):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, stride=2, padding=3), nn.ReLU(), nn.Conv2d(32, 64, 3))
        self.blocks = nn.Sequential(*(Block(64, turned) for _ in range(4)))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).mean((2, 3))))
"""
# Each loads one file, as the library's documentation says, into `model`.
STATE = "model = Model(); model.load_state_dict(torch.load(path))"
WHOLE = "model = torch.load(path, weights_only=False)"
ASSIGNED = "import torchao; model = Model(); model.load_state_dict(torch.load(path, weights_only=False), assign=True)"
TIMM = """
import timm
model = timm.create_model("rexnet_150", num_classes=10)
model.load_state_dict(torch.load(path))
"""
INT8 = """
from torchao.quantization import Int8WeightOnlyConfig, quantize_
inside = [id(each) for block in model.blocks for each in (block.up, block.down)]
quantize_(model, Int8WeightOnlyConfig(version=2), lambda module, _: id(module) in inside)
"""
NF4 = """
from bitsandbytes.nn import Linear4bit, Params4bit
for block in model.blocks:
    for name in ("up", "down"):
        layer = getattr(block, name)
        packed = Linear4bit(layer.in_features, layer.out_features, compute_dtype=torch.float32, quant_type="nf4")
        packed.bias = layer.bias
        packed.weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=packed).to("cpu")
        setattr(block, name, packed)
model.is_loaded_in_4bit = True
"""
ADAPTED = """
import peft
model = Model()
saved = torch.load(path, weights_only=False)
model.load_state_dict(saved["base"])
PACKED
peft.inject_adapter_in_model(peft.LoraConfig(**saved["config"]), model)
peft.set_peft_model_state_dict(model, saved["adapters"])
"""
PLAIN = """
import json, sys
from pathlib import Path
sys.modules["memfit"] = None
import torch
from model import Block, Model
torch.set_num_threads(1)
found = {}
for name, load in json.loads(Path("loads.json").read_text()).items():
    path = f"{name}.pt"
    try:
        within = {"Model": Model, "torch": torch, "path": path}
        exec(load, within)
        inputs, expected = torch.load(f"{name}.outputs")
        with torch.inference_mode():
            outputs = within["model"].eval()(inputs)
        found[name] = float((outputs.float() - expected.float()).abs().max())
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
Path("found.json").write_text(json.dumps(found))
"""
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        optimizer.step()


def undone(change: Callable[..., shrink.Applied]) -> Callable[[nn.Module], tuple[Any, str]]:
    """Trained with a technique, which is then taken out: the model has its own layers and names."""

    def make(model: nn.Module) -> tuple[Any, str]:
        optimizer = adam(model)
        applied = change(model, optimizer)
        train(model, optimizer)
        applied.undo()
        return model.state_dict(), STATE

    return make


def whole(change: Callable[..., shrink.Applied]) -> Callable[[nn.Module], tuple[Any, str]]:
    """Trained with smaller layers, which are saved with the model."""

    def make(model: nn.Module) -> tuple[Any, str]:
        optimizer = adam(model)
        change(model, optimizer)
        train(model, optimizer)
        return model, WHOLE

    return make


def masked(model: nn.Module) -> tuple[Any, str]:
    shrink.prune_masks(model, percent=50)
    for module in model.modules():
        if prune.is_pruned(module) and isinstance(module, (nn.Linear, nn.Conv2d)):
            prune.remove(module, "weight")
    assert float((model.head.weight == 0).float().mean()) == 0.5
    return model.state_dict(), STATE


def another(model: nn.Module) -> tuple[Any, str]:
    optimizer = adam(model)
    shrink.drop_in_network(model, IMAGES, "mobilenet_v3_small", optimizer)
    return model.memfit_network, WHOLE


def of_timm(model: nn.Module) -> tuple[Any, str]:
    optimizer = adam(model)
    shrink.drop_in_network(model, IMAGES, "timm/rexnet_150", optimizer)
    train(model, optimizer)
    return model.memfit_network.state_dict(), TIMM


def quantized_state(model: nn.Module) -> Any:
    shrink.quantized_weights(model, bits=4)
    return model.state_dict()


def quantized(kind: Any) -> Callable[[nn.Module], tuple[Any, str]]:
    def make(model: nn.Module) -> tuple[Any, str]:
        shrink.torchao_weights(model, kind)
        return model.state_dict(), ASSIGNED

    return make


def adapted(
    change: Callable[..., shrink.Applied], packed: str = "", **options: Any
) -> Callable[[nn.Module], tuple[Any, str]]:
    """Load adapters of peft onto the original weights, which are quantized again."""

    def make(model: nn.Module) -> tuple[Any, str]:
        peft = importlib.import_module("peft")
        optimizer = adam(model)
        layers = [f"blocks.{place}.{name}" for place in range(4) for name in ("up", "down")]
        base = copy.deepcopy(model.state_dict())
        change(model, optimizer, rank=4)
        train(model, optimizer)
        # The head is trained as well.
        base.update({name: each for name, each in model.state_dict().items() if name.startswith("head.")})
        config = {"r": 4, "lora_alpha": 8.0, "target_modules": layers, **options}
        saved = {"base": base, "config": config, "adapters": peft.get_peft_model_state_dict(model)}
        return saved, ADAPTED.replace("PACKED", packed)

    return make


# What makes it, and the library that it takes, if any.
MADE: dict[str, tuple[Callable[[nn.Module], tuple[Any, str]], str]] = {
    "lora": (undone(lambda model, optimizer: shrink.lora(model, optimizer, rank=4)), ""),
    "qlora": (undone(lambda model, optimizer: shrink.qlora(model, optimizer, rank=4)), ""),
    "train-only": (undone(lambda model, optimizer: shrink.train_only(model, "head", optimizer)), ""),
    "8-bit-optimizer": (undone(shrink.eight_bit_optimizer), ""),
    "prune-masks": (masked, ""),
    "fewer-blocks": (whole(shrink.fewer_blocks), ""),
    "depthwise": (
        whole(lambda model, optimizer: shrink.lighter_convolutions(model, "depthwise", optimizer)),
        "",
    ),
    "drop-in-network": (another, "torchvision"),
    "prune-channels": (whole(lambda model, it: shrink.prune_channels(model, IMAGES, it)), "torch_pruning"),
    "low-rank-gradients": (
        undone(lambda model, optimizer: shrink.low_rank_gradients(model, optimizer, rank=8)),
        "pytorch_optimizer",
    ),
    "qat": (undone(lambda model, _: shrink.qat(model)), "torchao"),
    "float8-training": (undone(lambda model, _: shrink.float8_training(model)), "torchao"),
    "torchao-int8": (quantized("int8"), "torchao"),
    "torchao-int8-int4": (quantized("int8-int4"), "torchao"),
    "dora": (adapted(shrink.dora, use_dora=True), "peft"),
    "peft-qlora": (adapted(shrink.peft_qlora, NF4), "bitsandbytes"),
    "torchao-qlora": (adapted(shrink.torchao_qlora, INT8), "torchao"),
    "bf16-weights": (undone(shrink.bf16_weights), ""),
    "int4-weights": (lambda model: (quantized_state(model), STATE), ""),
    # The layers of GPT-2, for which the libraries' formats have linear layers.
    "turned-lora": (undone(lambda model, optimizer: shrink.lora(model, optimizer, rank=4)), "transformers"),
    "turned-qat": (undone(lambda model, _: shrink.qat(model)), "torchao"),
    "turned-torchao-int8": (
        lambda model: (shrink.torchao_weights(model, "int8"), (model, WHOLE))[1],
        "torchao",
    ),
    "turned-dora": (adapted(shrink.dora, use_dora=True, fan_in_fan_out=True), "peft"),
    "drop-in-network-of-timm": (of_timm, "timm"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """For each technique the largest difference of the outputs, or the error of the process."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "model.py").write_text(MODEL)
    sys.path.insert(0, str(folder))
    try:
        model_of = importlib.import_module("model").Model
        loads = {}
        for name, (make, library) in MADE.items():
            if library and find_spec(library) is None:
                continue
            torch.manual_seed(0)
            is_turned = name.startswith("turned-")
            model = model_of(turned=is_turned)
            saved, load = make(model)
            loads[name] = load.replace("Model()", "Model(turned=True)") if is_turned else load
            with torch.inference_mode():
                outputs = model.eval()(IMAGES)
            torch.save(saved, folder / f"{name}.pt")
            torch.save((IMAGES, outputs.clone()), folder / f"{name}.outputs")
    finally:
        sys.path.remove(str(folder))
    (folder / "loads.json").write_text(json.dumps(loads))
    (folder / "plain.py").write_text(PLAIN)
    done = subprocess.run(
        [sys.executable, "plain.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return read


@pytest.mark.parametrize("name", MADE)
def test_a_process_without_memfit_gets_the_same_outputs(found: dict[str, Any], name: str) -> None:
    library = MADE[name][1]
    if library:
        pytest.importorskip(library, reason="`make shrink` installs the libraries of requirements/shrink.txt")
    assert isinstance(found[name], float), found[name]
    assert found[name] < 1e-5
