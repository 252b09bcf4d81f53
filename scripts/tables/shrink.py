"""Measures the techniques of `memfit shrink` on six models; writes `measurements/shrink.md`.

  python scripts/tables/shrink.py [--only NAME ...]   models to measure again; others keep their rows
  python scripts/tables/shrink.py --rows NAME ...     techniques to measure again, of the models of `--only`
  python scripts/tables/shrink.py --only              no model; writes the page again
  python scripts/tables/shrink.py --published         published figures to measure again, also with `--only`

The libraries of requirements/shrink.txt have to be on PYTHONPATH, as for `make shrink`. Measured bytes are
compared with those computed from the numbers of parameters and the shapes of layers.
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

import shrink_published
from dry_runs import ROOT, memfit
from shrink_models import MODELS, Layers, elements, layers

OUT = ROOT / "measurements" / "shrink.md"
KEPT = ROOT / "measurements" / "shrink.json"
# The key of published figures in the file.
PUBLISHED = "published"
GPU = "a100-80gb"
STEPS = 2
SHRINK = ["shrink", "--quiet", "--gpu", GPU, "--steps", str(STEPS), "--format", "json"]

SHARED = ["train-head", "8-bit-optimizer", "bf16-weights", "prune-masks"]
CONVOLUTIONS = [
    *SHARED,
    *("prune-channels", "depthwise", "grouped", "smaller-images", "mobilenet", "rexnet", "convnext"),
]
TRANSFORMERS = [
    *SHARED,
    *("lora", "qlora", "peft-qlora", "torchao-qlora", "low-rank-gradients", "qat", "fewer-blocks"),
    *("shorter-sequences", "torchao-int8", "torchao-int4", "semi-structured"),
]


def techniques(model: str) -> list[str]:
    if model.startswith(("ResNet", "U-Net")):
        return CONVOLUTIONS
    return [each for each in TRANSFORMERS if each != "shorter-sequences" or not model.startswith("ViT")]


# Bytes of weights, gradients and optimizer state for these numbers of parameters and of trained parameters.
# AdamW keeps two numbers for each trained parameter. Codes in 8 bits have a scale for each 256.
def full(parameters: int, trained: int, _: Layers) -> float:
    return 4 * parameters + 12 * trained


def frozen(packed: Callable[[int, int], float]) -> Callable[[int, int, Layers], float]:
    """Adapters on weights in a format whose bytes `packed` gives for a matrix."""

    def held(parameters: int, trained: int, of: Layers) -> float:
        weights = sum(packed(outputs, inputs) for outputs, inputs in of.adapted)
        return 4 * (parameters - elements(of.adapted)) + weights + 12 * trained

    return held


def galore(parameters: int, trained: int, of: Layers) -> float:
    """A projection of the smaller side, and two moments of the larger one, each of rank 128."""
    low = [sides for sides in of.matrices if min(sides) > 128]
    state = sum(4 * 128 * (min(sides) + 2 * max(sides)) for sides in low)
    return 4 * parameters + 4 * trained + state + 8 * (trained - elements(low))


def int8(parameters: int, _: int, of: Layers) -> float:
    """A byte for each weight of a linear layer, and a scale for each output."""
    scales = sum(outputs for outputs, _ in of.linear)
    return 4 * (parameters - elements(of.linear)) + elements(of.linear) + 4 * scales


def int4(parameters: int, _: int, of: Layers) -> float:
    """Half a byte for each weight, and two numbers in bf16 for each 32; rows are padded to 1024 weights."""
    padded = [(outputs, -(-inputs // 1024) * 1024) for outputs, inputs in of.linear if inputs % 32 == 0]
    # Outputs are padded to 8.
    padded = [(-(-outputs // 8) * 8, inputs) for outputs, inputs in padded]
    plain = parameters - elements([sides for sides in of.linear if sides[1] % 32 == 0])
    return 2 * plain + elements(padded) / 2 + 4 * elements(padded) / 32


def sparse(parameters: int, _: int, of: Layers) -> float:
    """Half of the weights in bf16, and two bits for the place of each."""
    kept = elements([sides for sides in of.linear if sides[0] % 32 == 0 and sides[1] % 64 == 0])
    return 2 * (parameters - kept) + kept + kept / 8


ARITHMETIC: dict[str, Callable[[int, int, Layers], float]] = {
    "8-bit-optimizer": lambda parameters, trained, _: (
        4 * parameters + 4 * trained + 2 * trained * (1 + 4 / 256)
    ),
    "bf16-weights": lambda parameters, trained, _: 2 * parameters + 6 * trained,
    "qlora": frozen(lambda outputs, inputs: outputs * inputs * (1 / 2 + 4 / 256)),
    # A scale in 8 bits for each 64 weights, and one in 32 bits for each 256 of these.
    "peft-qlora": frozen(lambda outputs, inputs: outputs * inputs * (1 / 2 + 1 / 64 + 4 / 64 / 256)),
    "torchao-qlora": frozen(lambda outputs, inputs: outputs * inputs + 4 * outputs),
    "low-rank-gradients": galore,
    "torchao-int8": int8,
    "torchao-int4": int4,
    "semi-structured": sparse,
}
# Reasons why measured bytes differ from the computed ones by more than 2 %.
EXPLAINED: dict[tuple[str, str], str] = {}


def measure(model: str, rows: list[str]) -> dict[str, Any]:
    """The document of `memfit shrink` for a model and some techniques."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(MODELS[model].script)
        done = subprocess.run(
            [memfit(), *SHRINK, "--only", ",".join(rows), "--", sys.executable, "train.py"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    document: dict[str, Any] = json.loads(done.stdout)
    return {key: document[key] for key in ("baseline", "rows", "torch", "wall_s", "runs")}


def mib(count: float) -> str:
    return f"{count / 2**20:,.0f}"


def held(row: dict[str, Any]) -> int:
    """Bytes of weights, gradients and optimizer state; of weights alone where nothing is trained."""
    return sum(row["bytes"].values())


def expected(row: dict[str, Any], of: Layers) -> float:
    """The same by arithmetic."""
    return ARITHMETIC.get(row["technique"], full)(row["parameters"], row["trained"] or 0, of)


def table(model: str, document: dict[str, Any]) -> list[str]:
    lines = [
        "| technique | parameters | trained | holds | arithmetic | training | saves | inference | saves | step |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    unknown = []
    of = layers(MODELS[model])
    for row in [document["baseline"], *document["rows"]]:
        if row["training"] is None and row["inference"] is None:
            unknown.append(f"- `{row['technique']}` is unknown: {row['note']}")
            continue
        if "cannot be measured" in (row["note"] or ""):
            unknown.append(f"- `{row['technique']}`: {' '.join(row['note'].split())}")
        cells = [f"`{row['technique']}`" if row["levers"] else "as it is"]
        cells += ["" if row[key] is None else f"{row[key] / 1e6:,.1f} M" for key in ("parameters", "trained")]
        wanted = expected(row, of)
        off = held(row) / wanted - 1
        cells += [mib(held(row)), f"{mib(wanted)} ({off * 100:+.1f} %)"]
        if abs(off) > 0.02:
            unknown.append(
                f"- `{row['technique']}` differs from arithmetic: {EXPLAINED[model, row['technique']]}"
            )
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
  parameters and the shapes of layers, and by how much the first differs.
- `training` and `inference`: peaks of the device with all activations, CUDA context and libraries; `saves` is the
  difference from the first row, negative where a technique takes more.

`holds` is of weights alone where nothing is trained. Differences above 2 % are explained below the table. Smaller ones
come from tensors that are too small to be packed: state below 4,096 elements stays in fp32 under `8-bit-optimizer` and
`bf16-weights`, and so does batch normalisation under `bf16-weights`; NF4 has a table of 16 numbers and one of 256 for
each matrix. The masks of `prune-masks` are buffers, so only the peaks have them.

A technique that a table lacks was not measured for that model.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--published", nargs="*", choices=list(shrink_published.CASES), default=None)
    parser.add_argument("--rows", nargs="+", help="techniques to measure again; others keep their rows")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if options.published is not None:
        for case in options.published or shrink_published.CASES:
            known.setdefault(PUBLISHED, {})[case] = shrink_published.CASES[case]()
            KEPT.write_text(json.dumps(known, indent=1) + "\n")
    for model in options.only:
        wanted = [each for each in techniques(model) if not options.rows or each in options.rows]
        if not wanted:
            continue
        before = known.get(model) if options.rows else None
        known[model] = merged(before, measure(model, wanted), techniques(model))
        print(f"{model}: {known[model]['runs']} runs in {known[model]['wall_s']:.0f} s", flush=True)
        KEPT.write_text(json.dumps(known, indent=1) + "\n")
    write(known)


def merged(before: dict[str, Any] | None, after: dict[str, Any], order: list[str]) -> dict[str, Any]:
    """A table with the rows that were measured again."""
    if before and before["baseline"]["training"] != after["baseline"]["training"]:
        raise SystemExit("the first row is not what it was: measure all rows of the model again")
    rows = {row["technique"]: row for row in [*(before["rows"] if before else ()), *after["rows"]]}
    return {**after, "rows": [rows[name] for name in order if name in rows]}


def write(known: dict[str, Any]) -> None:
    torch = next(known[model] for model in MODELS if model in known)["torch"]
    lines = [HEAD.format(torch=torch, gpu=GPU, steps=STEPS)]
    for model in MODELS:
        if model in known:
            lines += [f"## {model}", "", *table(model, known[model])]
    lines += shrink_published.section(known.get(PUBLISHED, {}), known)
    OUT.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
