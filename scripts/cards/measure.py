"""Compare replayed verdicts with runs, and the time of a whole table with one run.

    python scripts/cards/measure.py [--sample N] [--seed N] [--only NAME] [--anew]

Each workload's table of all known GPUs is made once. Then the same script is run (`--prove`) on a seeded
sample of the GPUs that the table decided by a replay. Half of the sample are the GPUs with the least
headroom, where a replay is most likely to be wrong; `--sample 200` runs all of them. The verdicts, peaks and
estimated step times of replay and run are compared.

The result of each workload is added to measurements/cards.json at once, and is measured again only with
`--anew`. The table is measurements/cards.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "measurements" / "cards.json"
TABLE = ROOT / "measurements" / "cards.md"
MIB = 1 << 20
# Sizes at which some cards of the catalogue are too small.
WORKLOADS = {
    "resnet": "resnet.py --batch-size 96",
    "bert": "bert.py --batch-size 16",
    "gpt2": "gpt2.py --batch-size 8",
    "t5": "t5.py --batch-size 32",
    "llama": "llama.py --bf16 --batch-size 2",
    "unet": "unet.py",
    "unet3d": "unet3d.py --batch-size 4",
    "vit": "vit.py --batch-size 96",
    "lstm": "lstm.py --batch-size 512",
    "gan": "gan.py --batch-size 512",
    "diffusion": "diffusion.py",
    "catch_oom": "catch_oom.py",
}


def cards(command: list[str], *options: str) -> dict[str, Any]:
    """The document of `memfit cards`."""
    memfit = os.environ.get("MEMFIT_COMMAND", "memfit")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cards.json"
        subprocess.run(
            [memfit, "cards", "--quiet", "--json", str(file), *options, "--", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        document: dict[str, Any] = json.loads(file.read_text())
        return document


def run_once(command: list[str]) -> None:
    """One `memfit run` of the command, on a card on which it fits."""
    memfit = os.environ.get("MEMFIT_COMMAND", "memfit")
    subprocess.run(
        [memfit, "run", "--quiet", "--no-prove", "--gpu", "h200", "--", *command],
        capture_output=True,
        check=False,
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, its wall time and the CPU time of its processes, in seconds."""

    def processors() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    began, spent = time.monotonic(), processors()
    result = work()
    return result, round(time.monotonic() - began, 1), round(processors() - spent, 1)


def sample(rows: list[dict[str, Any]], size: int, seed: int) -> list[str]:
    """Cards that a replay decided: half of them with the least headroom, the others by chance."""
    decided = [row for row in rows if row["evidence"] == "replayed" and row["headroom"] is not None]
    near = sorted(decided, key=lambda row: abs(row["headroom"]))[: size // 2]
    rest = [row for row in decided if row not in near]
    chosen = near + random.Random(seed).sample(rest, min(size - len(near), len(rest)))
    return [row["gpu"] for row in chosen]


def compared(replayed: dict[str, Any], ran: dict[str, Any]) -> dict[str, Any]:
    """One card's two rows."""
    both = (replayed, ran)
    peaks: list[int] = [row["peak"]["device_upper"] for row in both if row["peak"]]
    steps: list[float] = [row["step_ms_estimate"] for row in both if row["step_ms_estimate"]]
    return {
        "gpu": ran["gpu"],
        "replayed": replayed["verdict"],
        "run": ran["verdict"],
        "peak_difference": abs(peaks[0] - peaks[1]) if len(peaks) == len(both) else None,
        "step_ratio": steps[0] / steps[1] if len(steps) == len(both) else None,
    }


def measured(line: str, size: int, seed: int) -> dict[str, Any]:
    """Result of one workload."""
    script, *arguments = line.split()
    command = [sys.executable, str(ROOT / "workloads" / script), *arguments]
    _, run_s, run_processor_s = timed(lambda: run_once(command))
    table, table_s, table_processor_s = timed(lambda: cards(command))
    rows = {row["gpu"]: row for row in table["rows"]}
    chosen = sample(table["rows"], size, seed)
    options = [word for gpu in chosen for word in ("--gpu", gpu)]
    proven = cards(command, "--prove", *options)["rows"] if chosen else []
    verdicts = [row["verdict"] for row in table["rows"]]
    return {
        "command": line,
        "run_s": run_s,
        "run_processor_s": run_processor_s,
        "table_s": table_s,
        "table_processor_s": table_processor_s,
        "runs": table["runs"],
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "ran": sum(row["evidence"] == "run" for row in table["rows"]),
        "compared": [compared(rows[row["gpu"]], row) for row in proven],
    }


def table(results: dict[str, Any]) -> str:
    """Format the page."""
    out = [
        "# `memfit cards`: replayed verdicts compared with full runs\n",
        "Written by `scripts/cards/measure.py`. `memfit cards` answers for all known GPUs, most of them by a replay of the",
        "allocator calls of a run on another GPU. A seeded sample of the replayed answers (half of it the GPUs with the least",
        "headroom) is compared here with a run of the script on the same virtual GPU: the verdict, the peaks and the estimated",
        "step time.\n",
        "Times are wall time in seconds, with CPU time in parentheses. Other programs on the machine (two cores) affect the",
        "wall time only.\n",
        "| workload | GPUs: fits, does not fit, unknown | time of one run | time of the table | table / run | runs for the table | GPUs decided by a run | GPUs compared | verdicts equal | largest difference of the peaks | of the step times |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results.values():
        verdicts = result["verdicts"]
        pairs = result["compared"]
        equal = sum(pair["replayed"] == pair["run"] for pair in pairs)
        peaks = [pair["peak_difference"] for pair in pairs if pair["peak_difference"] is not None]
        steps = [abs(pair["step_ratio"] - 1) for pair in pairs if pair["step_ratio"] is not None]
        out.append(
            f"| `{result['command']}` "
            f"| {verdicts.get('fits-as-is', 0)}, {verdicts.get('does-not-fit', 0)}, {verdicts.get('unknown', 0)} "
            f"| {result['run_s']} ({result['run_processor_s']}) | {result['table_s']} ({result['table_processor_s']}) "
            f"| {result['table_s'] / result['run_s']:.1f} "
            f"({result['table_processor_s'] / result['run_processor_s']:.1f}) "
            f"| {result['runs']} | {result['ran']} | {len(pairs)} | {equal} of {len(pairs)} "
            f"| {f'{max(peaks) / MIB:.1f} MiB' if peaks else ''} "
            f"| {f'{max(steps) * 100:.1f} %' if steps else ''} |"
        )
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=6, help="cards that are run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(WORKLOADS))
    parser.add_argument(
        "--anew",
        action="store_true",
        help="measure again what was measured before, or the workload of `--only`",
    )
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name, line in WORKLOADS.items():
        if (name in results and not args.anew) or args.only not in (None, name):
            continue
        results[name] = measured(line, args.sample, args.seed)
        STORE.write_text(json.dumps(results, indent=1) + "\n")
        TABLE.write_text(table(results))
        print(json.dumps(results[name]["verdicts"]), name, flush=True)


if __name__ == "__main__":
    main()
