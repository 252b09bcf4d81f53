"""Compares published figures with memfit's for the same settings: a section of `measurements/shrink.md`.

Sizes of data sets, and the lengths of their samples, are not here. Where a published figure depends on them,
differences between two techniques are compared, in which they cancel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dry_runs import ROOT, memfit
from shrink_models import MODELS, elements, layers

MIB = 2**20
MARK = "measured: "

# Llama 3.2 3B in bf16 with the adapters of peft, or trained in full: what is allocated after a step.
PEFT = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(LlamaConfig(vocab_size=128256, hidden_size=3072, intermediate_size=8192,
    num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, tie_word_embeddings=True))
torch.set_default_dtype(torch.float32)
if sys.argv[1] != "full":
    from peft import LoraConfig, get_peft_model
    rank, use_dora = int(sys.argv[1]), sys.argv[2] == "dora"
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"],
                                             use_dora=use_dora, task_type="CAUSAL_LM"))
trained = [each for each in model.parameters() if each.requires_grad]
optimizer = torch.optim.AdamW(trained)
for _ in range(2):
    ids = torch.zeros(4, 345, dtype=torch.long)
    optimizer.zero_grad()
    outputs = model(input_ids=ids, labels=ids)
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("measured:", sum(each.numel() for each in trained), torch.cuda.memory_allocated(), flush=True)
"""
# The means over the last 250 of 5,000 steps on MetaMathQA ("mem allocated avg"), in bytes, and the numbers of
# trained parameters, from huggingface/peft, method_comparison/MetaMathQA/results.
PEFT_SOURCE = "huggingface/peft, method_comparison/MetaMathQA/results (Llama 3.2 3B, L40S)"
PEFT_PUBLISHED = {
    "full fine-tuning": ("full -", 3_212_749_824, 26_062_803_286),
    "LoRA, rank 32": ("32 lora", 9_175_040, 6_918_408_684),
    "LoRA, rank 64": ("64 lora", 18_350_080, 7_065_262_428),
    "DoRA, rank 32": ("32 dora", 9_289_728, 6_918_453_602),
}

# Models in bf16, of which torchao's table states the bytes without embeddings ("Model Size"), in 10^9.
LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(LlamaConfig(SIZES))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    ids = torch.zeros(1, 8, dtype=torch.long)
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TORCHAO_SOURCE = "pytorch/ao@03d01ad, torchao/quantization/README.md"
TORCHAO_MODELS = {
    "Llama 2 7B": (
        "vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, "
        "num_attention_heads=32",
        32000 * 4096,
        {"as it is": 13.21, "torchao-int8": 6.62},
    ),
    "Llama 3 8B": (
        "vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, "
        "num_attention_heads=32, num_key_value_heads=8",
        128256 * 4096,
        {"as it is": 15.01, "torchao-int8": 7.52},
    ),
}
# The peak of allocated memory with torch's fused AdamW less that with torchao's AdamW8bit, in 10^9 bytes.
OPTIMIZER_SOURCE = "pytorch/ao@36027d8, torchao/optim/README.md (RTX 4070 Ti SUPER)"
OPTIMIZER_SAVES = 12.23 - 8.33


def measure_peft() -> dict[str, Any]:
    """The number of trained parameters and the bytes after a step, for each method."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(PEFT)
        for name, (arguments, _, _) in PEFT_PUBLISHED.items():
            command = [memfit(), "run", "--quiet", "--show-output", "--gpu", "l40s", "--steps", "0"]
            command += ["--format", "json", "--", sys.executable, "train.py", *arguments.split()]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            printed = [line for line in (done.stdout + done.stderr).splitlines() if MARK in line]
            if not printed:
                raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
            trained, allocated = printed[-1].split(MARK)[1].split()[:2]
            found[name] = {"trained": int(trained), "allocated": int(allocated)}
            print(f"{name}: {found[name]}", flush=True)
    return found


def shrink(script: str, gpu: str, only: str) -> dict[str, Any]:
    """The rows of a script by technique."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script)
        return shrink_file(Path(folder) / "train.py", gpu, only)


def shrink_file(script: Path, gpu: str, only: str) -> dict[str, Any]:
    command = [
        memfit(),
        "shrink",
        "--quiet",
        "--gpu",
        gpu,
        "--steps",
        "2",
        "--format",
        "json",
        "--only",
        only,
    ]
    command += ["--", sys.executable, str(script)]
    done = subprocess.run(command, cwd=script.parent, stdout=subprocess.PIPE, text=True, check=True)
    document = json.loads(done.stdout)
    return {row["technique"]: row for row in [document["baseline"], *document["rows"]]}


def measure_torchao() -> dict[str, Any]:
    """Bytes of weights without embeddings."""
    found: dict[str, Any] = {}
    for name, (sizes, embeddings, published) in TORCHAO_MODELS.items():
        rows = shrink(LLAMA.replace("SIZES", sizes), "a100-80gb", "torchao-int8")
        found[name] = {
            technique: rows["none" if technique == "as it is" else technique]["bytes"]["weights"]
            - 2 * embeddings
            for technique in published
        }
        print(f"{name}: {found[name]}", flush=True)
    return found


def measure_optimizer() -> dict[str, Any]:
    """Return by how much the peak of tensors falls."""
    rows = shrink_file(ROOT / "scripts/accuracy/vit_huge.py", "rtx-4070-ti-super", "8-bit-optimizer")
    return {name: row["training"]["allocated"] for name, row in rows.items()}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "peft": measure_peft,
    "torchao": measure_torchao,
    "optimizer": measure_optimizer,
}


def section(found: dict[str, Any], tables: dict[str, Any]) -> list[str]:
    """The lines of the page."""
    rows = [*_peft(found.get("peft")), *_torchao(found.get("torchao")), *_optimizer(found.get("optimizer"))]
    rows += _papers(tables)
    lines = [
        "## Published figures",
        "",
        "What memfit measures with the stated models, libraries and settings, beside what was published. Where a figure",
        "depends on the lengths of a data set's samples, the difference of two methods is compared.",
        "",
        "| source | figure | published | memfit | difference |",
        "|---|---|---|---|---|",
    ]
    for source, figure, published, measured, shown in rows:
        off = f"{(measured / published - 1) * 100:+.2f} %"
        lines.append(f"| {source} | {figure} | {shown(published)} | {shown(measured)} | {off} |")
    return [*lines, ""]


Row = tuple[str, str, float, float, Callable[[float], str]]


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _mib(number: float) -> str:
    return f"{number / MIB:,.1f} MiB"


def _peft(found: dict[str, Any] | None) -> list[Row]:
    if found is None:
        return []
    rows: list[Row] = [
        (PEFT_SOURCE, f"{name}: trained parameters", trained, found[name]["trained"], _count)
        for name, (_, trained, _) in PEFT_PUBLISHED.items()
    ]
    for more, less in (("full fine-tuning", "LoRA, rank 32"), ("LoRA, rank 64", "LoRA, rank 32")):
        published = PEFT_PUBLISHED[more][2] - PEFT_PUBLISHED[less][2]
        measured = found[more]["allocated"] - found[less]["allocated"]
        rows.append((PEFT_SOURCE, f"allocated after a step: {more}, less {less}", published, measured, _mib))
    return rows


def _torchao(found: dict[str, Any] | None) -> list[Row]:
    return [
        (
            TORCHAO_SOURCE,
            f"{name} in bf16, weights without embeddings: {technique}",
            published * 1e9,
            found[name][technique],
            lambda number: f"{number / 1e9:.2f} GB",
        )
        for name, (_, _, models) in (TORCHAO_MODELS.items() if found else ())
        for technique, published in models.items()
    ]


def _optimizer(found: dict[str, Any] | None) -> list[Row]:
    if found is None:
        return []
    measured = found["none"] - found["8-bit-optimizer"]
    figure = "ViT-Huge: peak with AdamW, less that with its state in 8 bits"
    return [(OPTIMIZER_SOURCE, figure, OPTIMIZER_SAVES * 1e9, measured, _mib)]


def _papers(tables: dict[str, Any]) -> list[Row]:
    """Return the figures that two papers state from arithmetic."""
    rows: list[Row] = []
    for model in MODELS:
        document = tables.get(model)
        by_name = {row["technique"]: row for row in document["rows"]} if document else {}
        packed = by_name.get("peft-qlora")
        of = layers(MODELS[model])
        if packed and packed["bytes"] and of.adapted:
            count = elements(of.adapted)
            bits = 8 * (packed["bytes"]["weights"] - 4 * (packed["parameters"] - count)) / count
            figure = f"{model}: `peft-qlora`, bits of a quantized weight (0.127 for scales)"
            rows.append(
                ("QLoRA (arXiv:2305.14314), section 3", figure, 4.127, bits, lambda each: f"{each:.3f}")
            )
        low = by_name.get("low-rank-gradients")
        if low and low["bytes"] and of.matrices:
            sides = [each for each in of.matrices if min(each) > 128]
            # An m by n matrix has mr + 2nr numbers of state, where m is the smaller side.
            stated = sum(4 * 128 * (min(each) + 2 * max(each)) for each in sides)
            rest = 8 * (low["trained"] - elements(sides))
            figure = f"{model}: `low-rank-gradients`, optimizer state of the projected matrices"
            rows.append(
                ("GaLore (arXiv:2403.03507), table 1", figure, stated, low["bytes"]["optimizer"] - rest, _mib)
            )
    return rows
