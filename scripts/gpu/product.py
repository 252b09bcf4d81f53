"""Run memfit's commands on a real GPU and on the virtual one, and compare the answers.

    python scripts/gpu/product.py --gpu local -o real.json [--jobs 6]      where the GPU is
    python scripts/gpu/product.py --gpu h200 -o virtual.json               anywhere, with the same torch
    python scripts/gpu/product.py --compare real.json virtual.json [--page]

Each case is a script of `workloads/` under `memfit run`, as it is or with a plan of some levers. On a real
GPU memfit follows the script; on the virtual one it stands in for the GPU. `measure.py` compares PyTorch's
own counters without memfit; this compares what memfit says. With several jobs the GPU is shared, so only
PyTorch's counters are compared then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from compare import memfit_command

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "measurements/product-on-gpu.md"
SCHEMA = "memfit.product-on-gpu/1"
MIB = 1024**2
STEPS, SECONDS = 3, 240
Levers = dict[str, Any]


class Case(NamedTuple):
    """A script of `workloads/` with its arguments, and the levers of a plan."""

    line: str
    levers: Levers

    @property
    def name(self) -> str:
        return self.line + "".join(
            f" + {lever}" if value is True else f" + {lever}={json.dumps(value)}"
            for lever, value in self.levers.items()
        )


GPT2, RESNET, BERT = "gpt2.py --batch-size 4", "resnet.py --batch-size 64", "bert.py --batch-size 16"
AS_IT_IS = [
    GPT2,
    RESNET,
    BERT,
    "vit.py",
    "unet.py",
    "t5.py",
    "lstm.py",
    "gan.py",
    "trainer.py",
    "accumulate.py",
    "checkpointed.py",
    "unet3d.py",
    "evaluate.py --epochs 2",
]
LEVERS: list[tuple[str, Levers]] = [
    (GPT2, {"checkpointing": "blocks"}),
    (GPT2, {"activation-offload": "blocks"}),
    (GPT2, {"chunked-loss": 1024}),
    (GPT2, {"autocast-bf16": True}),
    (GPT2, {"autocast-fp16": True}),
    (GPT2, {"tf32": True}),
    (GPT2 + " --attention eager", {"sdpa": True}),
    (GPT2, {"fused-optimizer": True}),
    (GPT2, {"foreach-off": True}),
    (GPT2, {"optimizer-in-backward": True}),
    (GPT2, {"host-optimizer-state": True}),
    (GPT2, {"bf16-optimizer-state": True}),
    (GPT2, {"8-bit-optimizer": True}),
    (GPT2, {"adafactor": True}),
    (GPT2, {"pure-bf16": True}),
    (GPT2, {"lora": 8}),
    (GPT2, {"lora": 8, "quantized-base": "4-bit"}),
    (GPT2, {"train-only": "head"}),
    (GPT2, {"micro-batch": 2}),
    (GPT2, {"autocast-bf16": True, "chunked-loss": 1024, "checkpointing": "blocks"}),
    (GPT2, {"expandable-segments": True}),
    (GPT2, {"compile": "blocks"}),
    (GPT2, {"fewer-blocks": 50}),
    (RESNET, {"channels-last": True}),
    (RESNET, {"channels-last": True, "autocast-bf16": True}),
    (RESNET, {"checkpointing": "blocks"}),
    (RESNET, {"micro-batch": 16}),
    (BERT, {"checkpointing": "blocks", "autocast-bf16": True}),
    (BERT, {"activation-offload": "blocks"}),
    ("vit.py", {"checkpointing": "blocks", "fused-optimizer": True}),
    ("unet.py", {"autocast-bf16": True}),
    ("unet.py", {"activation-offload": "all"}),
]
CASES = [Case(line, {}) for line in AS_IT_IS] + [Case(*each) for each in LEVERS]


def plan(levers: Levers) -> str:
    """Return a plan file of these levers; the size of micro-batches is a key of its own."""
    lines = ["version = 1"]
    if "micro-batch" in levers:
        lines.append(f"micro_batch = {levers['micro-batch']}")
    for name, value in levers.items():
        if name != "micro-batch":
            lines += ["", "[[lever]]", f'name = "{name}"', f"value = {json.dumps(value)}"]
            lines += ['label = "changes-training"']
    return "\n".join(lines) + "\n"


def answer(case: Case, gpu: str, memfit: str, python: str) -> dict[str, Any]:
    """Run a case, and return what memfit says of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [memfit, "run", "--gpu", gpu, "--isolated", "--no-prove", "--steps", str(STEPS)]
        command += ["--timeout", f"{SECONDS}s", "--format", "json"]
        if case.levers:
            (folder / "plan.toml").write_text(plan(case.levers))
            command += ["--plan", "plan.toml"]
        script, *arguments = case.line.split()
        command += ["--", python, str(ROOT / "workloads" / script), *arguments]
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = round(time.monotonic() - began, 1)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"failed": " | ".join(lines[-4:])[:600], "status": done.returncode, "seconds": seconds}
    found = {key: report.get(key) for key in ("verdict", "peak", "steps")}
    found["categories"] = (report.get("at_peak") or {}).get("by_category")
    found["step_ms"] = (report.get("time") or {}).get("step_ms")
    found["notes"] = [note["id"] for note in report.get("notes", []) if isinstance(note, dict)]
    if report.get("error"):
        found["error"] = str(report["error"])[:600]
    return found | {"status": done.returncode, "seconds": seconds}


def measured(gpu: str, memfit: str, python: str, jobs: int, only: str) -> dict[str, Any]:
    """Run all cases."""
    asked = [python, "-c", "import torch; print(torch.__version__)"]
    torch = subprocess.check_output(asked, text=True).strip()
    cases = [case for case in CASES if not only or any(word in case.name for word in only.split(","))]
    with ThreadPoolExecutor(jobs) as pool:
        answers = list(pool.map(lambda case: answer(case, gpu, memfit, python), cases))
    return {
        "schema": SCHEMA,
        "gpu": gpu,
        "card": card() if gpu == "local" else gpu,
        "jobs": jobs,
        "torch": torch,
        "cases": {case.name: found for case, found in zip(cases, answers, strict=True)},
    }


def page(real: dict[str, Any], virtual: dict[str, Any]) -> str:
    """Return a table of what memfit says on both GPUs."""
    rows, apart = [], {"allocated": [], "reserved": []}
    compared: set[str] = set()
    for name, case in real["cases"].items():
        beside = virtual["cases"].get(name, {})
        if not case.get("peak") or not beside.get("peak"):
            rows.append(f"| {name} | {case.get('failed') or beside.get('failed') or 'not run'} | | | | |")
            continue
        cells = []
        for key, differences in apart.items():
            here, there = case["peak"][key], beside["peak"][key]
            differences.append(abs(there / here - 1))
            cells += [f"{here / MIB:,.1f}", f"{there / MIB:,.1f}"]
        compared.add(name)
        worst = max(each[-1] for each in apart.values())
        cells.append("equal" if worst < 1e-6 else f"{worst:.2%}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    # Only the cases with results; a name has one ` + ` for each lever.
    levers = Counter(name.count(" + ") for name in real["cases"] if name in compared)
    lines = [
        "# The same commands on a real and on the virtual GPU",
        "",
        "Written by `python scripts/gpu/product.py --compare REAL VIRTUAL --page`: scripts of `workloads/` under",
        f"`memfit run --gpu local` on {real['card']} and under `memfit run --gpu {virtual['gpu']}`, {levers[0]} as they are,",
        f"{levers[1]} with a plan of one lever and {sum(levers.values()) - levers[0] - levers[1]} with several. {STEPS} steps; torch {real['torch']} and",
        f"{virtual['torch']}; sizes in MiB.",
        "",
    ]
    for key, differences in apart.items():
        differences.sort()
        lines.append(
            f"- {key}: {sum(each < 1e-6 for each in differences)} of {len(differences)} are equal; median "
            f"difference {statistics.median(differences):.2%}, worst {differences[-1]:.2%}"
        )
    head = "| script and levers | allocated, real | virtual | reserved, real | virtual | larger difference |"
    return "\n".join([*lines, "", head, "|---|--:|--:|--:|--:|--:|", *rows]) + "\n"


def card() -> str:
    """Return the name of the GPU that PyTorch sees."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="local")
    parser.add_argument("-o", "--output", type=Path, default=Path("product.json"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--memfit", default=memfit_command())
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("REAL", "VIRTUAL"))
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.compare:
        text = page(*(json.loads(file.read_text()) for file in given.compare))
        print(text)
        if given.page:
            PAGE.write_text(text)
        return 0
    found = measured(given.gpu, given.memfit, sys.executable, given.jobs, given.only)
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    for name, case in found["cases"].items():
        peak = case.get("peak") or {}
        said = case.get("failed") or case.get("error") or f"{peak.get('allocated', 0) / MIB:,.1f} MiB"
        print(f"{name}: {said}, {case['seconds']} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
