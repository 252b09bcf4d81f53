"""Write the tables of docs/remedies/: what each remedy saves of one training, and what it costs.

    python scripts/tables/remedies.py [--check PAGE…]

Each row is a run of examples/remedies/train.py on a virtual GPU: with the option that makes the change by
hand, or unchanged under a plan with memfit's lever. `--check` runs the rows of these pages and compares them
with what is written; bytes have to be equal.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memfit._core import lever_label

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/remedies"
SCRIPT = "examples/remedies/train.py"
GPU = "rtx-3090"
GIB = 1 << 30
TABLE = re.compile(r"(?<=<!-- table -->\n)[\s\S]*?(?=\n<!-- end of table -->)")
HEAD = "| | allocated | on the GPU | a step |\n|---|--:|--:|--:|"
BLOCKS = [f"blocks.{index}" for index in range(12)]
ON = "true"


@dataclass(frozen=ON)
class Row:
    """One training: the script's options, or the levers of a plan."""

    name: str
    options: tuple[str, ...] = ()
    # Names and values, as a plan file has them.
    levers: tuple[tuple[str, str], ...] = ()


AS_IT_IS = Row("as it is: 16 sequences, fp32, AdamW")
ROWS: dict[str, list[Row]] = {
    "batch-size": [
        AS_IT_IS,
        Row("`--batch 8`", ("--batch", "8")),
        Row("`--batch 4`", ("--batch", "4")),
        Row("`--accumulate 4`: the same batch in micro-batches of 4", ("--accumulate", "4")),
        Row("memfit's `micro-batch` of 4", ("--steps", "12"), levers=(("micro-batch", "4"),)),
    ],
    "mixed-precision": [
        AS_IT_IS,
        Row("`--precision bf16`", ("--precision", "bf16")),
        Row("`--precision fp16`, with a scaler", ("--precision", "fp16")),
        Row("memfit's `autocast-bf16`", levers=(("autocast-bf16", ON),)),
    ],
    "activation-checkpointing": [
        AS_IT_IS,
        Row("`--checkpoint`: all 12 blocks", ("--checkpoint",)),
        Row("memfit's `checkpointing` of 6 blocks", levers=(("checkpointing", json.dumps(BLOCKS[:6])),)),
        Row("memfit's `checkpointing` of 12 blocks", levers=(("checkpointing", json.dumps(BLOCKS)),)),
        Row("`--checkpoint --precision bf16`", ("--checkpoint", "--precision", "bf16")),
    ],
    "optimizer-state": [
        AS_IT_IS,
        Row("`--optimizer sgd`", ("--optimizer", "sgd")),
        Row("`--optimizer adafactor`", ("--optimizer", "adafactor")),
        Row("memfit's `8-bit-optimizer`", levers=(("8-bit-optimizer", ON),)),
        Row("memfit's `bf16-optimizer-state`", levers=(("bf16-optimizer-state", ON),)),
        Row("memfit's `optimizer-in-backward`", levers=(("optimizer-in-backward", ON),)),
    ],
    "inference": [
        AS_IT_IS,
        Row("`--evaluate sum-tensors`", ("--evaluate", "sum-tensors")),
        Row("`--evaluate sum-numbers`", ("--evaluate", "sum-numbers")),
        Row("`--evaluate no-grad`", ("--evaluate", "no-grad")),
    ],
}


@cache
def measured(row: Row) -> dict[str, Any]:
    """Return the report of a run, to the script's end."""
    memfit = Path(sys.executable).with_name("memfit")
    command = [str(memfit), "run", "--gpu", GPU, "--steps", "0", "--no-prove", "--quiet", "--format", "json"]
    with tempfile.TemporaryDirectory() as folder:
        if row.levers:
            plan = Path(folder) / "memfit.plan.toml"
            plan.write_text(plan_of(row))
            command += ["--plan", str(plan)]
        command += ["--", sys.executable, SCRIPT, *row.options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    if report.get("verdict") not in ("fits", "oom"):
        sys.exit(f"{row.name}: no answer\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    left = [note for note in report["fidelity"]["notes"] if "was not applied" in note]
    if left:
        sys.exit(f"{row.name}: {left[0]}")
    return report


def plan_of(row: Row) -> str:
    """Return a plan file with nothing but a row's levers."""
    lines = []
    for name, value in row.levers:
        if name == "micro-batch":
            # The script makes its batches itself, by this option. Four turns of its loop are one step then.
            lines += [f"micro_batch = {value}", "[made_for]", "batch = 16", 'batch_names = ["batch"]']
        else:
            lines += ["[[lever]]", f'name = "{name}"', f"value = {value}"]
            lines.append(f'label = "{lever_label(name)}"')
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[str]:
    """Return the cells of a row."""
    report = measured(row)
    peak, ms = report["peak"], report["time"]["step_ms_estimate"]
    fits = "" if report["verdict"] == "fits" else ", and fails"
    return [
        row.name,
        f"{peak['allocated'] / GIB:.2f} GiB{fits}",
        f"{peak['device_upper'] / GIB:.2f} GiB",
        f"{ms:.0f} ms" if ms else "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", nargs="+", choices=ROWS, metavar="PAGE")
    check = parser.parse_args().check
    stale = []
    for page, rows in ROWS.items():
        if check and page not in check:
            continue
        path = PAGES / f"{page}.md"
        found = [cells(row) for row in rows]
        table = "\n".join([HEAD, *("| " + " | ".join(row) + " |" for row in found)])
        print(f"{page}\n{table}", flush=ON)
        before = path.read_text()
        if check:
            stale += [page] if bytes_of(TABLE.findall(before)[0]) != bytes_of(table) else []
        else:
            path.write_text(TABLE.sub(lambda _, table=table: table, before))
    if stale:
        print(f"outdated: {', '.join(stale)}: python scripts/tables/remedies.py", file=sys.stderr)
    return int(bool(stale))


def bytes_of(table: str) -> list[str]:
    """Return a table's rows without their times."""
    return [line.rsplit("|", 2)[0] for line in table.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
