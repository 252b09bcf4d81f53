"""Compares one public ablation of memory techniques with the order in which the planner uses them.

    python scripts/plan/ablation.py [--most N]

torchtune's README (v0.6, "Memory and Training Efficiency") adds memory techniques one after another, for a
model with the shape of Llama 3.2 3B on one A100. Here transformers' model of that shape, trained by a plain
script (`workloads/llama.py`), is planned for the same GPU with less and less memory. The planner chooses the
levers freely, except that the batch of two is not split, as in the ablation. For the memory column, a plan
file also applies the levers of each row to the recipe as `scripts/accuracy/ablation.py` rebuilds it, and to
the plain script.

The result of each run is added to measurements/plan-ablation.json at once, and is not run again. The table is
measurements/plan-ablation.md.
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
STORE = ROOT / "measurements" / "plan-ablation.json"
TABLE = ROOT / "measurements" / "plan-ablation.md"
SCRIPT = "llama.py --layers 28 --hidden 3072 --heads 24 --bf16 --batch-size 2 --sequence 4096"
# Only the baseline of the ablation; the chunked loss is the recipe's own, which differs from memfit's.
RECIPE = "../scripts/accuracy/ablation.py --divide-loss"
RECIPE_CHUNKED = f"{RECIPE} --chunked"
GIB = 1024**3
# GiB of the card, falling.
CARDS = (80, 64, 56, 46, 40, 32, 27, 25, 23, 20, 18)
# The README's figures: the technique that a row adds, the corresponding lever, and the peak in GiB.
ROWS = (
    ("packed baseline", ("fused-optimizer", True), 60.0),
    ("+ compile", ("compile", "blocks"), 51.0),
    ("+ chunked CE", ("chunked-loss", True), 42.9),
    ("+ activation checkpointing", ("checkpointing", "blocks"), 24.9),
    ("+ optimizer in backward", ("optimizer-in-backward", True), 23.1),
    ("+ 8-bit AdamW", ("8-bit-optimizer", True), 17.6),
)


def memfit(script: str, *arguments: str) -> dict[str, Any]:
    command = os.environ.get("MEMFIT_COMMAND") or shutil.which("memfit") or "memfit"
    done = subprocess.run(
        [
            command,
            arguments[0],
            "--format",
            "json",
            *arguments[1:],
            "--",
            sys.executable,
            *script.split(),
        ],
        cwd=ROOT / "workloads",
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def plan(card: int) -> dict[str, Any]:
    asked = ("--gpu", "a100-80gb", "--memory", f"{card}GiB", "--without", "micro-batch", "--compile")
    for allow in ("precision", "changes-training"):
        report = memfit(SCRIPT, "plan", *asked, "--allow", allow)
        if report["verdict"] != "does-not-fit":
            break
    chosen = report["chosen"]
    return {
        "verdict": report["verdict"],
        "allow": allow,
        "levers": [[lever["name"], lever["value"]] for lever in chosen["levers"]] if chosen else [],
        "peak": chosen["peak"] if chosen else None,
        "step_ms": chosen["step_ms_estimate"] if chosen else None,
        "evaluations": report["evaluations"],
        "wall_s": report["wall_s"],
    }


def recipe(index: int) -> dict[str, Any]:
    levers = dict(lever for _, lever, _ in ROWS[: index + 1])
    own_loss = levers.pop("chunked-loss", None)
    return with_levers(RECIPE_CHUNKED if own_loss else RECIPE, levers)


def row(index: int) -> dict[str, Any]:
    return with_levers(SCRIPT, dict(lever for _, lever, _ in ROWS[: index + 1]))


def with_levers(script: str, levers: dict[str, Any]) -> dict[str, Any]:
    if "optimizer-in-backward" in levers:
        # Updates in pieces use the given kernel.
        del levers["fused-optimizer"]
    with tempfile.TemporaryDirectory(prefix="memfit-ablation-") as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(
            "".join(
                f'[[lever]]\nname = "{name}"\nvalue = {json.dumps(value)}\nlabel = "changes-training"\n'
                for name, value in levers.items()
            )
        )
        report = memfit(script, "run", "--gpu", "a100-80gb", "--no-prove", "--plan", str(path))
    return {
        "verdict": report["verdict"],
        "peak": report["peak"],
        "step_ms": report["time"]["step_ms_estimate"],
    }


def words(found: dict[str, Any]) -> str:
    told = []
    for name, value in found["levers"]:
        told.append(f"{name} of {len(value)} blocks" if isinstance(value, list) else name)
    return ", ".join(told) or "unchanged"


def taken_at(known: dict[str, Any], lever: str) -> int | None:
    """Return the largest memory size at which the plan uses a lever."""
    cards = [card for card in CARDS if lever in dict(known.get(f"card {card}", {"levers": []})["levers"])]
    return max(cards, default=None)


def write(known: dict[str, Any]) -> None:
    lines = [TEXT]
    lines += [
        "| size of the GPU | plan | allocated | GPU memory | step | runs | search, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for card in CARDS:
        found = known.get(f"card {card}")
        if found is None:
            continue
        allowed = "" if found["allow"] == "precision" else f" (`--allow {found['allow']}`)"
        if found["peak"] is None:
            lines.append(
                f"| {card} GiB | does not fit{allowed} | | | | {found['evaluations']} | {found['wall_s']:.0f} |"
            )
            continue
        peak = found["peak"]
        lines.append(
            f"| {card} GiB | {words(found)}{allowed} | {peak['allocated'] / GIB:.1f} GiB "
            f"| {peak['device_upper'] / GIB:.1f} GiB | {found['step_ms']:.0f} ms "
            f"| {found['evaluations']} | {found['wall_s']:.0f} |"
        )
    levers = ("compile", "chunked-loss", "checkpointing", "optimizer-in-backward", "8-bit-optimizer")
    first = ", ".join(f"{lever} at {taken_at(known, lever) or 'none'}" for lever in levers)
    lines += ["", f"The largest of these memory sizes, in GiB, at which a plan uses each lever: {first}.", ""]
    lines += [COLUMN]
    lines += ["| row | published | recipe | error | step | plain script | error | step |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for index, (name, _, published) in enumerate(ROWS):
        cells = [name, f"{published} GiB"]
        for kind in ("recipe", "row"):
            found = known.get(f"{kind} {index}")
            if found is None:
                cells += ["", "", ""]
                continue
            own = found["peak"]["allocated"] / GIB
            off = (own / published - 1) * 100
            cells += [f"{own:.1f} GiB", f"{off:+.1f}%", f"{found['step_ms']:.0f} ms"]
        lines.append(f"| {' | '.join(cells)} |")
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, help="stop after this number of runs")
    left = parser.parse_args().most
    known: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    jobs = [(f"row {index}", row, index) for index in range(len(ROWS))]
    jobs += [(f"recipe {index}", recipe, index) for index in range(len(ROWS))]
    jobs += [(f"card {card}", plan, card) for card in CARDS]
    for key, job, argument in jobs:
        if key in known:
            continue
        if left is not None and left <= 0:
            break
        known[key] = job(argument)
        STORE.write_text(json.dumps(known, indent=1) + "\n")
        write(known)
        print(f"{key}: {known[key].get('levers', known[key]['verdict'])}", flush=True)
        left = None if left is None else left - 1
    write(known)


TEXT = """# The planner compared with a published ablation

Written by `scripts/plan/ablation.py`. torchtune's README (v0.6) adds memory techniques to a full fine-tune of a model with the
shape of Llama 3.2 3B (batch 2, 4096 tokens, bfloat16) on one A100, one after another. This page shows which levers `memfit plan`
chooses for the same model when the GPU has less and less memory, and compares the memory of the published rows. All runs are
on a virtual A100: nothing was measured on a real one.

## Plans for less and less memory

Each plan is the one with the shortest estimated step that fits, for transformers' model of that shape and a plain script
(`workloads/llama.py`). `--compile` allows compilation, and `--without micro-batch` keeps the batch whole, as in the ablation.
*Allocated* is the peak of allocated memory, *GPU memory* that of all memory in use on the GPU, at its upper bound. *Runs* is
the number of runs of the search.
"""

COLUMN = """## Memory of the published rows

Here a plan file applies the levers of each published row to two scripts; figures are peaks of allocated memory and estimated
step times.

- *Recipe*: the ablation's baseline, rebuilt (`scripts/accuracy/ablation.py`), with memfit's levers. It keeps its own loss, whose
  chunks keep the logits in bfloat16 (1.96 GiB) until the backward pass.
- *Plain script*: the script planned for above, with transformers' model and memfit's chunked loss, which keeps no logits. So it
  needs less memory than published.

The published row "+ activation offload" (21.8 GiB) is only in [ablation.md](ablation.md), because that offload is the recipe's
own. The last row uses memfit's 8-bit optimizer, which makes the step 53 % longer; torchao's makes it 5 to 6 % longer
([ablation.md](ablation.md)).
"""

if __name__ == "__main__":
    main()
