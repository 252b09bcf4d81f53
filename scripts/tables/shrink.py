"""Measures the techniques of `memfit shrink` on six models; writes `measurements/shrink.md`.

  python scripts/tables/shrink.py [--only NAME ...]   models to measure again; others keep their rows

The libraries of requirements/shrink.txt have to be on PYTHONPATH, as for `make shrink`. Beside what was
counted stands what arithmetic gives for it from the numbers of parameters alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dry_runs import ROOT, memfit

OUT = ROOT / "measurements" / "shrink.md"
KEPT = ROOT / "measurements" / "shrink.json"
GPU = "a100-80gb"
STEPS = 2
SHRINK = ["shrink", "--quiet", "--gpu", GPU, "--steps", str(STEPS), "--format", "json"]

ENDS = """
optimizer = torch.optim.AdamW(model.parameters())
for step, batch in enumerate(DataLoader(data, BATCH)):
    loss = loss_of(*[each.cuda() for each in batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
"""
BEGINS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_device("cuda")
"""
IMAGES = """
torch.set_default_device("cpu")
data = TensorDataset(torch.zeros(BATCH * 3, 3, 224, 224), torch.zeros(BATCH * 3, dtype=torch.long))
def loss_of(x, y): return F.cross_entropy(model(x), y)
"""
TOKENS = """
torch.set_default_device("cpu")
data = TensorDataset(torch.zeros(BATCH * 3, LENGTH, dtype=torch.long))
def loss_of(ids): return model(input_ids=ids, labels=LABELS(ids)).loss
"""
# Sides that are halved four times, as published for biomedical images.
U_NET = """
BATCH = 4
def pair(a, b):
    layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sides = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *sides], sides))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in sides[-2::-1])
        self.across = nn.ModuleList(pair(2 * a, a) for a in sides[-2::-1])
        self.out = nn.Conv2d(64, 2, 1)
    def forward(self, x):
        kept = []
        for place, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if place else x)
            kept.append(x)
        for up, across, old in zip(self.up, self.across, kept[-2::-1]):
            x = across(torch.cat((old, up(x)), 1))
        return self.out(x)
model = UNet()
torch.set_default_device("cpu")
data = TensorDataset(torch.zeros(12, 3, 256, 256), torch.zeros(12, 256, 256, dtype=torch.long))
def loss_of(x, y): return F.cross_entropy(model(x), y)
"""

MODELS = {
    "ResNet-50, 32 images": BEGINS
    + "BATCH = 32\nimport torchvision\nmodel = torchvision.models.resnet50()"
    + IMAGES
    + ENDS,
    "ViT-B/16, 32 images": BEGINS
    + "BATCH = 32\nimport torchvision\nmodel = torchvision.models.vit_b_16()"
    + IMAGES
    + ENDS,
    "BERT-base, 16 x 256 tokens": BEGINS
    + "BATCH, LENGTH, LABELS = 16, 256, lambda ids: ids[:, 0]\nfrom transformers import BertConfig, "
    "BertForSequenceClassification\nmodel = BertForSequenceClassification(BertConfig())" + TOKENS + ENDS,
    "GPT-2, 4 x 1024 tokens": BEGINS
    + "BATCH, LENGTH, LABELS = 4, 1024, lambda ids: ids\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
    "model = GPT2LMHeadModel(GPT2Config())" + TOKENS + ENDS,
    "U-Net, 4 images of 256 x 256": BEGINS + U_NET + ENDS,
    "a Llama of 1.24 G parameters, 1 x 1024 tokens": BEGINS
    + "BATCH, LENGTH, LABELS = 1, 1024, lambda ids: ids\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
    "model = LlamaForCausalLM(LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192,\n"
    "    num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True))"
    + TOKENS
    + ENDS,
}
SHARED = ["train-head", "8-bit-optimizer", "bf16-weights", "prune-masks"]
CONVOLUTIONS = [*SHARED, "prune-channels", "depthwise", "grouped", "smaller-images", "mobilenet"]
TRANSFORMERS = [
    *SHARED,
    *("lora", "qlora", "peft-qlora", "low-rank-gradients", "qat", "fewer-blocks"),
    *("shorter-sequences", "torchao-int8", "torchao-int4", "semi-structured"),
]


def techniques(model: str) -> list[str]:
    if model.startswith(("ResNet", "U-Net")):
        return CONVOLUTIONS
    return [each for each in TRANSFORMERS if each != "shorter-sequences" or not model.startswith("ViT")]


# Bytes of weights, gradients and optimizer state for so many parameters, and trained ones among them: AdamW
# keeps two numbers for each trained parameter. Codes in 8 bits have a scale for each 256.
FULL: Callable[[int, int], float] = lambda parameters, trained: 4 * parameters + 12 * trained  # noqa: E731
ARITHMETIC: dict[str, Callable[[int, int], float]] = {
    "8-bit-optimizer": lambda parameters, trained: 4 * parameters + 4 * trained + 2 * trained * (1 + 4 / 256),
    "bf16-weights": lambda parameters, trained: 2 * parameters + 6 * trained,
}
# What is packed depends on the layers, and is held to arithmetic in tests/python/test_shrink_libraries.py.
BY_LAYER = {"qlora", "peft-qlora", "low-rank-gradients"}


def measure(model: str) -> dict[str, Any]:
    """The document of `memfit shrink` for a model."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(MODELS[model])
        done = subprocess.run(
            [memfit(), *SHRINK, "--only", ",".join(techniques(model)), "--", sys.executable, "train.py"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    document: dict[str, Any] = json.loads(done.stdout)
    return {key: document[key] for key in ("baseline", "rows", "torch", "wall_s", "runs")}


def mib(count: float) -> str:
    return f"{count / 2**20:,.0f}"


def arithmetic(row: dict[str, Any]) -> str:
    """What arithmetic gives in MiB for what training holds, and by how much the measured bytes differ."""
    if row["training"] is None or row["technique"] in BY_LAYER:
        return ""
    expected = ARITHMETIC.get(row["technique"], FULL)(row["parameters"], row["trained"])
    held = sum(row["bytes"].values())
    return f"{mib(expected)} ({(held / expected - 1) * 100:+.1f} %)"


def table(document: dict[str, Any]) -> list[str]:
    lines = [
        "| technique | parameters | trained | holds | arithmetic | training | saves | inference | saves | step |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    unknown = []
    for row in [document["baseline"], *document["rows"]]:
        if row["training"] is None and row["inference"] is None:
            unknown.append(f"- `{row['technique']}` is unknown: {row['note']}")
            continue
        if "cannot be measured" in (row["note"] or ""):
            unknown.append(f"- `{row['technique']}`: {' '.join(row['note'].split())}")
        cells = [f"`{row['technique']}`" if row["levers"] else "as it is"]
        cells += ["" if row[key] is None else f"{row[key] / 1e6:,.1f} M" for key in ("parameters", "trained")]
        cells += [mib(sum(row["bytes"].values())) if row["training"] else "", arithmetic(row)]
        for part in ("training", "inference"):
            cells.append("" if row[part] is None else mib(row[part]["device"]))
            saved = row["saves"][part]
            cells.append("" if saved is None else mib(saved))
        cells.append("" if row["step_ms_estimate"] is None else f"{row['step_ms_estimate']:.1f} ms")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *unknown, *([""] if unknown else [])]


HEAD = """# Smaller models, measured

Written by `python scripts/tables/shrink.py`; torch {torch}. Each row is a run of `memfit shrink --gpu {gpu}` with AdamW
in fp32, {steps} steps. All sizes are in MiB.

- `holds`: weights, gradients and optimizer state as they were counted. `arithmetic`: the same from the numbers of
  parameters alone, and by how much the first differs.
- `training` and `inference`: peaks of the device with all activations, CUDA context and libraries; `saves` is the
  difference from the first row, negative where a technique takes more.

`holds` differs from arithmetic where tensors are too small to be packed: state below 4,096 elements stays in fp32 under
`8-bit-optimizer` and `bf16-weights`, and so does batch normalisation under `bf16-weights`. The masks of `prune-masks`
are buffers, so only the peaks have them. Formats that depend on the layers (`qlora`, `peft-qlora`, `low-rank-gradients`,
torchao's and 2:4 sparsity) are held to arithmetic in `tests/python/test_shrink.py` and `test_shrink_libraries.py`.

Published figures, for comparison. QLoRA's paper states 0.127 bits for each parameter for the scales of NF4 with
double quantization, which is 4.127 bits in all; `tests/python/test_shrink_libraries.py` holds `peft-qlora` to it.
GaLore's paper states the optimizer state of an m by n matrix as mr + 2nr numbers instead of 2mn, to which the same
test holds `low-rank-gradients`.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for model in options.only:
        known[model] = measure(model)
        print(f"{model}: {known[model]['runs']} runs in {known[model]['wall_s']:.0f} s", flush=True)
        KEPT.write_text(json.dumps(known, indent=1) + "\n")
        write(known)


def write(known: dict[str, Any]) -> None:
    torch = next(iter(known.values()))["torch"]
    lines = [HEAD.format(torch=torch, gpu=GPU, steps=STEPS)]
    for model in MODELS:
        if model in known:
            lines += [f"## {model}", "", *table(known[model])]
    OUT.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
