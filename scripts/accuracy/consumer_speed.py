"""Compare published times of networks on consumer GPUs with those of virtual GPUs; write
../../measurements/consumer-speed.md.

    python scripts/accuracy/consumer_speed.py [--label after] [--no-run]

The rows are from the results that timm publishes of its `benchmark.py --amp` (the folder `results` of
huggingface/pytorch-image-models at aa4b5850), chosen by a rule that was stated before any was run. h is the
number in the first eight hexadecimal digits of the SHA-256 of "GPU MODE MODEL SIZE". A row is chosen if h is
a multiple of its file's `every` and the network has 3 to 120 million parameters; it is held out (never used
for fitting) if h // every is odd. `MEMFIT_COMMAND` names the command; `MEMFIT_PYTHON` the interpreter, which
needs torch and timm. Each run is kept in consumer-speed.json under its label; with --no-run only the page is
written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MEASUREMENTS = HERE.parents[1] / "measurements"
RESULTS = MEASUREMENTS / "consumer-speed.json"
# Number of rows per chosen row, by GPU and mode.
EVERY = {"rtx-3090 train": 60, "rtx-3090 infer": 160, "rtx-4090 infer": 160, "rtx-5090 infer": 160}

HEAD = """# Published times on consumer GPUs compared with estimates

Written by `python scripts/accuracy/consumer_speed.py`. Milliseconds of a training step or a forward pass in half precision
(autocast) on one GPU: as timm publishes them (huggingface/pytorch-image-models at aa4b5850), and as `memfit run` estimates
them for the same networks. timm used torch 1.12 (training) and 2.4 (inference) on the RTX 3090, 2.4 on the RTX 4090 and 2.9
on the RTX 5090. Nothing was measured on a real GPU here.

Before any row was run, a hash of the row names chose the rows and divided them into *fitted* and *held-out* rows; the script
has the rule. One constant was then fitted to the fitted rows: the share of the specified rate that tensor cores reach on
GeForce GPUs from Ampere to Blackwell. It went from 0.90 or 0.92 to 1.08, the upper limit that was allowed, since these GPUs
run at most about 1/8 above their rated clock. The fitted rows alone would give an even higher share; their remaining error
has other causes than the tensor cores. *Before* and *after* are the estimates with the old and the new constant.

Nothing was fitted to the held-out rows. But their errors, with other values of the constant as well, had been printed when
it was chosen: they are not a blind test. Since then, the model of elementwise kernels, matrix-vector products and host time
changed as well ([datacenter-speed.md](datacenter-speed.md)); none of that was fitted to the rows of this page.
"""


def held_out(key: str) -> bool:
    """Return `True` if a row is never used for fitting."""
    gpu, mode = key.split()[:2]
    number = int(hashlib.sha256(key.encode()).hexdigest()[:8], 16)
    every = EVERY[f"{gpu} {mode}"]
    assert number % every == 0, key
    return number // every % 2 == 1


def run(row: dict[str, Any]) -> dict[str, Any]:
    command, python = os.environ.get("MEMFIT_COMMAND", "memfit"), os.environ.get("MEMFIT_PYTHON", "python")
    words = [str(row[name]) for name in ("model", "mode", "batch", "size", "layout")]
    # Before torch 2.0 there was no fused attention.
    env = {**os.environ, "TIMM_FUSED_ATTN": "0" if row["torch"] == "1.12" else "1"}
    asked = ["run", "--gpu", row["gpu"], "--memory", "200GiB", "--format", "json"]
    done = subprocess.run(
        [command, *asked, "--", python, str(HERE / "timm_network.py"), *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        sys.exit(done.stderr)
    time = json.loads(done.stdout)["time"]
    return {name: time[f"step_ms_{name}"] for name in ("estimate", "low", "high")} | {"busy": time["busy_ms"]}


def error(row: dict[str, Any], found: dict[str, Any]) -> float:
    return found["estimate"] / row["published"] - 1


def summary(rows: list[dict[str, Any]], label: str) -> str:
    """Return the accuracy of the estimates of a run."""
    found = [(row, row["runs"][label]) for row in rows if label in row["runs"]]
    if not found:
        return "| | | | |"
    errors = [error(*each) for each in found]
    inside = sum(each["low"] <= row["published"] <= each["high"] for row, each in found)
    width = statistics.median(each["high"] / each["low"] for _, each in found)
    middle, signed = statistics.median(map(abs, errors)), statistics.median(errors)
    return f"{middle:.1%} | {signed:+.1%} | {inside} of {len(found)} | {width:.2f} |"


def page(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        HEAD,
        "| | median error | median signed error | published within the interval | interval: median of high / low |",
    ]
    lines.append("|---|---|---|---|---|")
    for title, held in (("fitted rows", False), ("held-out rows", True)):
        chosen = [row for key, row in rows.items() if held_out(key) is held]
        lines += [f"| {title}, {label} | {summary(chosen, label)}" for label in ("before", "after")]
    lines += ["", "| | published | before | after | interval | held out |", "|---|---|---|---|---|---|"]
    for key, row in sorted(rows.items()):
        before, after = row["runs"].get("before"), row["runs"].get("after")
        told = [
            f"{each['estimate']:.0f} ({error(row, each):+.0%})" if each else "" for each in (before, after)
        ]
        interval = f"{after['low']:.0f} to {after['high']:.0f}" if after else ""
        never = "yes" if held_out(key) else ""
        lines.append(
            f"| {key}, batch {row['batch']} | {row['published']:.0f} | {' | '.join(told)} | {interval} | {never} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default="after", choices=("before", "after"))
    parser.add_argument("--no-run", action="store_true")
    asked = parser.parse_args()
    rows = json.loads(RESULTS.read_text())
    for key, row in rows.items():
        if not asked.no_run:
            row["runs"][asked.label] = run(row)
            print(f"{key}: {row['published']:.0f} published, {row['runs'][asked.label]['estimate']:.0f} here")
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    (MEASUREMENTS / "consumer-speed.md").write_text(page(rows))


if __name__ == "__main__":
    main()
