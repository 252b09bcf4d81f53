"""The reference cases of `memfit plan`: what it finds, whether that holds, and what the habits would have cost.

    python scripts/plan/reference.py [CASE...] --output measurements/plan.md

Each case is planned for, then run once more with its plan on the same virtual card, then with one sample more in the micro-batch
(where the plan divides the batch). The habits beside it, on the same card: halving the batch with accumulation until it fits, and
computing every block again, with as many halvings as that needs. All times are the virtual card's estimates of one
optimizer step of the same global batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GIB = 1024**3

# Name, card, how far the training may change, and the command.
CASES = {
    "ResNet-50, batch 192": ("t4", "precision", "resnet.py --batch-size 192"),
    "ResNet-50, batch 192, on 12 GB": ("rtx-3060", "precision", "resnet.py --batch-size 192"),
    "BERT-large, batch 32": (
        "rtx-4060",
        "precision",
        "bert.py --layers 24 --hidden 1024 --heads 16 --batch-size 32 --sequence 384",
    ),
    "GPT-2 124M, batch 32": ("rtx-3090", "precision", "gpt2.py --batch-size 32"),
    "GPT-2 350M, batch 16": (
        "rtx-3090",
        "precision",
        "gpt2.py --layers 24 --hidden 1024 --heads 16 --batch-size 16",
    ),
    "GPT-2 1.5B, batch 8": (
        "rtx-3090",
        "changes-training",
        "gpt2.py --layers 48 --hidden 1600 --heads 25 --batch-size 8",
    ),
    "ViT-L, batch 128": (
        "rtx-3090",
        "precision",
        "vit.py --layers 24 --width 1024 --heads 16 --batch-size 128",
    ),
    "U-Net, 1024 x 1024, batch 4": ("rtx-4060", "precision", "unet.py --batch-size 4"),
    "LSTM, batch 512": ("rtx-4060", "precision", "lstm.py --batch-size 512 --sequence 256"),
    "T5, batch 64": ("rtx-3060", "precision", "t5.py --batch-size 64"),
}


def memfit(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = os.environ.get("MEMFIT_COMMAND") or shutil.which("memfit") or "memfit"
    done = subprocess.run(
        [command, *arguments, "--format", "json"]
        if "--" not in arguments
        else [command, arguments[0], "--format", "json", *arguments[1:]],
        cwd=ROOT / "workloads",
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(done.stderr)
    return done.returncode, json.loads(done.stdout)


def write(folder: Path, micro_batch: int | None, blocks: list[str]) -> Path:
    """A plan of our own making: so many samples together, and these blocks computed again."""
    original = (folder / "plan.toml").read_text()
    kept = original[original.index("[made_for]") :]
    head = f"micro_batch = {micro_batch}\n" if micro_batch else ""
    if blocks:
        head += f'[[lever]]\nname = "checkpointing"\nvalue = {json.dumps(blocks)}\nlabel = "exact"\n'
    path = folder / "habit.toml"
    path.write_text(f"{head}\n{kept}")
    return path


def step_of(gpu: str, memory: int, plan: Path, command: list[str], pieces: int) -> float | None:
    """Milliseconds of a step with a plan, or None where it does not fit."""
    steps = "2" if pieces > 16 else "3"
    status, report = memfit(
        "run",
        "--gpu",
        gpu,
        "--memory",
        f"{memory >> 10}KiB",
        "--steps",
        steps,
        "--plan",
        str(plan),
        "--",
        *command,
    )
    return report["time"]["step_ms_estimate"] if status == 0 else None


def halved(
    gpu: str, report: dict[str, Any], folder: Path, command: list[str], blocks: list[str]
) -> float | None:
    batch = report["baseline"]["micro_batch"] or 1
    size = batch
    while size >= 1:
        found = step_of(
            gpu,
            report["budget"],
            write(folder, size if size < batch else None, blocks),
            command,
            batch // size,
        )
        if found is not None:
            return found
        if batch % 2:
            return None
        size //= 2
    return None


def case(name: str) -> list[str]:
    gpu, allow, words = CASES[name]
    command = [sys.executable, *words.split()]
    folder = Path(tempfile.mkdtemp(prefix="memfit-reference-"))
    try:
        status, report = memfit(
            "plan", "--gpu", gpu, "--allow", allow, "-o", str(folder / "plan.toml"), "--", *command
        )
        if report["verdict"] is None:
            return [name, gpu, f"no answer: {report['problem']['message']}"]
        chosen, baseline = report["chosen"], report["baseline"]
        if chosen is None:
            return [
                name,
                gpu,
                "does not fit",
                size(baseline),
                "",
                "",
                "",
                "",
                "",
                f"{report['evaluations']}",
                seconds(report),
            ]
        pieces = chosen["micro_batches_per_step"]
        fits = step_of(gpu, report["budget"], folder / "plan.toml", command, pieces) is not None
        limit = report["limit"] or {}
        refuted = f"{limit['refuted']} do not" if limit.get("refuted") else "whole batch"
        blocks = sorted(
            {
                block
                for each in report["pareto"]
                for lever in each["levers"]
                if lever["name"] == "checkpointing"
                for block in lever["value"]
            }
        )
        halving = halved(gpu, report, folder, command, []) if status == 0 else None
        full = halved(gpu, report, folder, command, blocks) if blocks else None
        return [
            name,
            gpu,
            ", ".join(told(lever) for lever in chosen["levers"]) or "as it is",
            size(baseline),
            size(chosen),
            "yes" if fits else "**no**",
            refuted,
            milliseconds(chosen["step_ms_estimate"]),
            milliseconds(halving),
            milliseconds(full),
            f"{report['evaluations']}",
            seconds(report),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def told(lever: dict[str, Any]) -> str:
    value = lever["value"]
    if isinstance(value, list):
        return f"{lever['name']} of {len(value)}"
    return lever["name"] if value is True else f"{lever['name']} {value}"


def size(run: dict[str, Any]) -> str:
    return f"{run['peak']['device_upper'] / GIB:.2f}"


def milliseconds(value: float | None) -> str:
    return "does not fit" if value is None else f"{value:.0f}"


def seconds(report: dict[str, Any]) -> str:
    return f"{report['wall_s']:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    head = [
        *("case", "card", "the plan", "as it is, GiB", "with it, GiB", "fits when run"),
        *("samples together", "step, ms", "halving, ms", "full checkpointing, ms", "runs", "s"),
    ]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in options.cases:
        row = case(name)
        rows.append("| " + " | ".join([*row, *[""] * (len(head) - len(row))]) + " |")
        print(rows[-1], flush=True)
        if options.output:
            options.output.write_text(TEXT + "\n".join(rows) + "\n")


TEXT = """# Plans for the reference cases

Made by `scripts/plan/reference.py`, whose head says how. Every figure is the virtual card's: memory is the card's peak with what lies
outside the allocator at its upper bound, on a card with 3 % of its memory set aside; time is the estimate of one optimizer
step of the script's own global batch. "halving" and "full checkpointing" are the habits, in the script's own precision; the seconds
depend on how busy the machine was.

"""

if __name__ == "__main__":
    main()
