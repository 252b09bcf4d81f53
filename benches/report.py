"""Run the benchmarks and write measurements/bench.md.

python benches/report.py [--only dispatch]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from whole_run import ROOT, measure, memfit

TARGET = ROOT / "measurements/bench.md"
MIB = 1024**2
DISPATCH = "## A step beside PyTorch's own dispatch"
WHOLE = "## A whole dry run of the example"


def dry_run(script: str, mark: str, *arguments: str, clock: str = "estimate") -> Any:
    """Return the output of a benchmark after `mark`, run on a virtual GPU."""
    command = [memfit(), "run", "--gpu", "a100-80gb", "--steps", "0", "--show-output", "--timeout", "900"]
    command += ["--clock", clock]
    command += ["--", sys.executable, str(ROOT / "benches" / script), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        if f"{mark}: {{" in line:
            return json.loads(line.split(f"{mark}: ", 1)[1])
    sys.exit(f"{script} printed no result (status {done.returncode}):\n{done.stderr[-2000:]}")


def torch_version() -> str:
    import torch

    return torch.__version__


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def dispatch() -> str:
    """Return the section that compares a step with PyTorch's own dispatch."""
    networks = dry_run("dispatch.py", "dispatch")
    stopped = dry_run("dispatch.py", "dispatch", "--ways", "virtual", clock="instant")
    rows = []
    for name, ways in networks.items():
        meta, virtual, watched = (ways[way]["median_ms"] for way in ("meta", "virtual", "watched"))
        off = stopped[name]["virtual"]["median_ms"]
        rows.append(
            f"| {name} | {meta:.1f} ms | {off:.1f} ms | {virtual:.1f} ms | {watched:.1f} ms "
            f"| **{virtual / meta:.2f}×** | **{virtual / off:.2f}×** |"
        )
    table = "\n".join(rows)
    return f"""{DISPATCH}

Processor time of one training step on PyTorch's `meta` device, which does what the host does for a step and nothing
after it, and of the same step on the virtual card (wanted: at most 2×). `meta` works many shapes out in Python, so the
virtual card with its clock stopped is the harder measure. {os.getloadavg()[0]:.0f} processes waited for {os.cpu_count()} cores while it was measured.

| | `meta` | clock stopped | virtual card | watched | virtual to `meta` | virtual to clock stopped |
|---|---|---|---|---|---|---|
{table}

To run it again: `python benches/report.py --only dispatch`

"""


def table(
    steps: dict[str, dict[str, float]],
    whole: dict[str, float],
    beside: str,
) -> str:
    """Format the report as Markdown."""
    plain, watched, tracker = (steps[way] for way in ("plain", "watched", "tracker"))
    faster = tracker["median_ms"] / watched["median_ms"]
    rows = "\n".join(
        f"| {name} | {way['median_ms']:.1f} ms | {way['first_ms']:.0f} ms "
        f"| {way['peak_allocated'] / MIB:,.2f} MiB |"
        for name, way in (
            ("virtual card, unwatched", plain),
            ("virtual card, watched by `memfit run`", watched),
            ("PyTorch's FakeTensorMode + MemTracker", tracker),
        )
    )
    unwatched_faster = tracker["median_ms"] / plain["median_ms"]
    cost = watched["median_ms"] / plain["median_ms"]
    return f"""# Speed

Written by `make bench` ({datetime.date.today()}; {cpu()}, {os.cpu_count()} cores,
{os.getloadavg()[0]:.0f} processes waiting for them while it was measured; torch {torch_version()}).
Every comparison was made within one run.

## One training step of ResNet-50, batch 64, fp32

| | median step | first step | peak allocated |
|---|---|---|---|
{rows}

- faster than PyTorch's tracker: **{faster:.0f}×** watched, {unwatched_faster:.0f}× unwatched (wanted: 60×)
- what watching costs: **{cost:.2f}×** the unwatched step (wanted: at most 3×)
- watching changes the peak by {abs(watched["peak_allocated"] - plain["peak_allocated"])} bytes

To run it again: `memfit run --gpu a100-80gb --steps 0 --show-output -- python benches/steady.py`

{beside}{WHOLE}

| median of {whole["rounds"]:.0f} | by the clock | processor time, workers included |
|---|---|---|
| `python -c "import torch, torchvision"` | {whole["imports_clock_s"]:.2f} s | {whole["imports_processor_s"]:.2f} s |
| `memfit run` of `examples/classifier/train.py` | {whole["run_clock_s"]:.2f} s | {whole["run_processor_s"]:.2f} s |

- more than the imports: **{whole["more_processor_s"]:.2f} s** of processor time, {whole["more_clock_s"]:.2f} s by the
  clock, which means little on a machine that is busy with other things (wanted: at most 3 s)

To run it again: `python benches/whole_run.py`
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["dispatch"], help="measure this part; the others stay as they are")
    args = parser.parse_args()
    if args.only:
        before, rest = TARGET.read_text().split(DISPATCH, 1)
        TARGET.write_text(before + dispatch() + WHOLE + rest.split(WHOLE, 1)[1])
        return
    steady = dry_run("steady.py", "steady", "--batch-size", str(args.batch_size))
    text = table(steady, measure(args.rounds), dispatch())
    TARGET.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
