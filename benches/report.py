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
DISPATCH = "## CPU time of a step compared with PyTorch's own dispatch"
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

CPU time of one training step on PyTorch's `meta` device, which does all the host work of a step and nothing else, and of
the same step on the virtual GPU (target: at most 2× as long). For many operators PyTorch computes `meta` shapes in slow
Python code. So the virtual GPU with a stopped clock (`--clock instant`), which adds little to PyTorch's own host work, is
the stricter comparison. Load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.

| | `meta` | virtual GPU, stopped clock | virtual GPU | virtual GPU, with the watcher | virtual GPU / `meta` | virtual GPU / stopped clock |
|---|---|---|---|---|---|---|
{table}

To measure this again: `python benches/report.py --only dispatch`

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
            ("virtual GPU, without the watcher", plain),
            ("virtual GPU, with the watcher", watched),
            ("PyTorch's FakeTensorMode + MemTracker", tracker),
        )
    )
    unwatched_faster = tracker["median_ms"] / plain["median_ms"]
    cost = watched["median_ms"] / plain["median_ms"]
    return f"""# Speed of the virtual GPU

Written by `make bench` ({datetime.date.today()}; {cpu()}, {os.cpu_count()} cores,
load average {os.getloadavg()[0]:.0f}; torch {torch_version()}).
Each comparison was made within one run. The watcher is the library with which `memfit run` records every block that
PyTorch's allocator hands out or takes back.

## One training step of ResNet-50, batch 64, fp32

| | median step | first step | peak allocated |
|---|---|---|---|
{rows}

- speed-up over PyTorch's tracker: **{faster:.0f}×** with the watcher, {unwatched_faster:.0f}× without (target: 60×)
- a step with the watcher takes **{cost:.2f}×** as long as without (target: at most 3×)
- the watcher changes the peak by {abs(watched["peak_allocated"] - plain["peak_allocated"])} bytes

To measure this again: `memfit run --gpu a100-80gb --steps 0 --show-output -- python benches/steady.py`

{beside}{WHOLE}

| median of {whole["rounds"]:.0f} | wall time | CPU time, with child processes |
|---|---|---|
| `python -c "import torch, torchvision"` | {whole["imports_clock_s"]:.2f} s | {whole["imports_processor_s"]:.2f} s |
| `memfit run` of `examples/classifier/train.py` | {whole["run_clock_s"]:.2f} s | {whole["run_processor_s"]:.2f} s |

- beyond the imports: **{whole["more_processor_s"]:.2f} s** of CPU time, {whole["more_clock_s"]:.2f} s of wall time, which
  means little on a machine that is busy with other work (target: at most 3 s)

To measure this again: `python benches/whole_run.py`
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["dispatch"], help="measure only this part; keep the others")
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
