"""Measure how time and memory of memfit grow with the size of its input, and write measurements/scale.md.

    python scripts/scale/curves.py [--only WORDS] [--seconds 120]

Each curve has one input that grows: layers, parameters, steps, ranks, events of a recording, source files,
images. Points are run in order of size until one takes more CPU time than `--seconds`, or until the
last size. A point is the CPU time of all processes of
the command and the peak memory of its largest process; what the smallest size takes (imports, start-up) is
part of both. The exponent is the slope between the last two points on a logarithmic scale, with the smallest
point's cost subtracted: 1 is linear. Results are kept in measurements/scale.json, so that `--only` renews
some curves.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "measurements/scale.json"
TARGET = ROOT / "measurements/scale.md"
TRAINING = str(HERE / "training.py")
MIB = 1024**2
# Bytes of host memory that the largest torchrun may take for each rank.
BYTES_PER_RANK = 700 * MIB

Command = Callable[[int, Path], list[str]]


def memfit() -> str:
    """Return the command next to this interpreter, or on `PATH`."""
    beside = Path(sys.executable).with_name("memfit")
    found = str(beside) if beside.is_file() else shutil.which("memfit")
    if not found:
        sys.exit("memfit is not installed here")
    return found


def dry_run(*arguments: str, gpu: str = "a100-80gb", options: tuple[str, ...] = ()) -> list[str]:
    """Return the command of a dry run of the training to its end."""
    command = [memfit(), "run", "--gpu", gpu, "--steps", "0", "--timeout", "0", "--no-prove", *options, "--"]
    return [*command, sys.executable, TRAINING, *arguments]


@dataclass(frozen=True)
class Curve:
    """An input that grows, and the command for a size of it."""

    name: str
    unit: str
    sizes: tuple[int, ...]
    command: Command
    # Limit of the curve on a larger machine.
    limit: str
    # Makes what the command needs, outside the measured time.
    prepare: Callable[[int, Path], None] = lambda _size, _folder: None


def recording(size: int, folder: Path) -> None:
    """Record a training run with at least this many allocator events."""
    # A step of four layers has about 150 events.
    steps = max(size // 150, 1)
    command = dry_run("--steps", str(steps), options=("-o", str(folder / "run.memfit")))
    subprocess.run(command, check=False, capture_output=True)


def sources(size: int, folder: Path) -> None:
    """Write this many copies of the example's training script, each with a name of its own."""
    text = (ROOT / "examples/classifier/train.py").read_text()
    for number in range(size):
        package = folder / f"sources/package{number // 100}"
        package.mkdir(parents=True, exist_ok=True)
        (package / f"train{number}.py").write_text(f"# Script {number}.\n{text}")


def rank_sizes() -> tuple[int, ...]:
    """Return the numbers of ranks whose processes fit in this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return tuple(n for n in (1, 2, 4, 8, 16, 32) if n * BYTES_PER_RANK < memory // 2)


def torchrun(size: int, _folder: Path) -> list[str]:
    command = dry_run("--distributed", gpu=f"a100-80gb:{size}")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return [*command[:-2], *launcher, *command[-2:]]


CURVES = (
    Curve(
        "layers of the model",
        "layers",
        (10, 100, 1_000, 3_000, 10_000),
        lambda size, _: dry_run("--layers", str(size)),
        "PyTorch's own time for each operation on the host",
    ),
    Curve(
        "parameters",
        "million parameters",
        (1, 100, 10_000, 1_000_000),
        # Sixteen square matrices.
        lambda size, _: dry_run(
            "--layers",
            "16",
            "--width",
            str(math.isqrt(size * 1_000_000 // 16)),
            options=("--memory", "256 TiB"),
        ),
        "none: memory on a virtual GPU is counted, not used",
    ),
    Curve(
        "steps of a run",
        "steps",
        (10, 100, 1_000, 10_000),
        lambda size, _: dry_run("--steps", str(size)),
        "PyTorch's own time for each step on the host",
    ),
    Curve(
        "ranks, one process each",
        "ranks",
        rank_sizes(),
        torchrun,
        "host memory: each rank is a process with PyTorch in it. `--world-size` runs one rank instead",
    ),
    Curve(
        "ranks, one process for all (`--world-size`)",
        "ranks",
        (8, 64, 512, 4_096, 32_768),
        lambda size, _: dry_run("--distributed", options=("--world-size", str(size))),
        "PyTorch's lists of all ranks",
    ),
    Curve(
        "events of a recording, replayed",
        "events",
        (10_000, 100_000, 1_000_000),
        lambda _, folder: [memfit(), "replay", str(folder / "run.memfit")],
        "a few bytes of memory for each event",
        recording,
    ),
    Curve(
        "events of a recording, explained",
        "events",
        (10_000, 100_000, 1_000_000),
        lambda _, folder: [memfit(), "explain", str(folder / "run.memfit")],
        "a few bytes of memory for each event",
        recording,
    ),
    Curve(
        "events of a recording, as a page",
        "events",
        (10_000, 100_000, 1_000_000),
        lambda _, folder: [memfit(), "view", str(folder / "run.memfit"), "-o", str(folder / "page.html")],
        "a few bytes of memory for each event",
        recording,
    ),
    Curve(
        "source files checked",
        "files",
        (100, 1_000, 10_000, 100_000),
        lambda _, folder: [memfit(), "check", str(folder / "sources"), "--format", "concise"],
        "one core's time for each file; facts about a whole project stay in memory",
        sources,
    ),
    Curve(
        "images of an epoch",
        "images",
        (1_000, 10_000, 100_000, 1_000_000),
        lambda size, folder: [
            sys.executable,
            str(HERE / "loading.py"),
            str(folder / "images"),
            "--images",
            str(size),
        ],
        "the list of paths in memory; decoding takes one core's time for each image",
    ),
)


@dataclass(frozen=True)
class Point:
    """Cost of one size."""

    size: int
    wall: float
    processor: float
    peak: int


def measure(curve: Curve, size: int) -> Point:
    """Run the command for a size."""
    with tempfile.TemporaryDirectory(prefix="memfit-scale-") as temporary:
        folder = Path(temporary)
        curve.prepare(size, folder)
        command = curve.command(size, folder)
        # A process of its own, whose children are all of the command's.
        watched = [sys.executable, str(Path(__file__).resolve()), "--measured", *command]
        done = subprocess.run(watched, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout)
        return Point(size, found["wall"], found["processor"], found["peak"])


def measured(command: list[str]) -> int:
    """Run a command; print what it and its children took."""
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    # A verdict or a finding is not a failure.
    if done.returncode not in (0, 1):
        print(done.stderr, file=sys.stderr)
        return 1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = {
        "wall": time.monotonic() - began,
        "processor": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * 1024,
    }
    print(json.dumps(took))
    return 0


def exponent(points: list[Point], value: Callable[[Point], float]) -> float | None:
    """Return the slope between the last two points beyond the first one's cost; `None` if the cost hardly
    grows.
    """
    if len(points) < 3:
        return None
    base = value(points[0])
    before, last = (value(point) - base for point in points[-2:])
    if before <= 0.05 * base or last <= before:
        return None
    return math.log(last / before) / math.log(points[-1].size / points[-2].size)


def curve_of(name: str) -> Curve:
    return next(curve for curve in CURVES if curve.name == name)


def slope_text(value: float | None) -> str:
    return "hardly grows" if value is None else f"{value:.2f}"


def page(results: dict[str, Any]) -> str:
    """Return the text of the page."""
    lines = [
        "# How cost grows with size",
        "",
        f"Written by `make scale` (`scripts/scale/curves.py`; {results['date']}, {results['machine']}). Each",
        "curve has one input that grows; its docstring says how a point is measured. An exponent of 1 is linear. Memory is",
        "the peak of the largest process, PyTorch's included.",
        "",
        "| input | largest tried | processor time there | memory there | exponent of time | exponent of memory | what limits a hundred times more |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    listed = {name: [Point(**each) for each in points] for name, points in results["curves"].items()}
    for name, points in listed.items():
        last = points[-1]
        time_slope, memory_slope = (
            exponent(points, value) for value in (lambda p: p.processor, lambda p: float(p.peak))
        )
        lines.append(
            f"| {name} | {last.size:,} {curve_of(name).unit} | {last.processor:,.1f} s | {last.peak / MIB:,.0f} MiB "
            f"| {slope_text(time_slope)} | {slope_text(memory_slope)} | {curve_of(name).limit} |"
        )
    for name, points in listed.items():
        unit = curve_of(name).unit
        lines += [
            "",
            f"## {name[0].upper()}{name[1:]}",
            "",
            f"| {unit} | wall | processor time | memory |",
            "|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {each.size:,} | {each.wall:,.1f} s | {each.processor:,.1f} s | {each.peak / MIB:,.0f} MiB |"
            for each in points
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    if sys.argv[1:2] == ["--measured"]:
        return measured(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="curves whose names hold one of these words")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="end a curve after a point that took so long"
    )
    given = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"curves": {}}
    words = given.only.split()
    for curve in CURVES:
        if words and not any(word in curve.name for word in words):
            continue
        points: list[Point] = []
        for size in curve.sizes:
            points.append(measure(curve, size))
            print(f"{curve.name}: {points[-1]}", flush=True)
            if points[-1].processor > given.seconds:
                break
        results["curves"][curve.name] = [vars(point) for point in points]
        results["date"] = str(datetime.date.today())
        results["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
        order = [each.name for each in CURVES]
        results["curves"] = dict(sorted(results["curves"].items(), key=lambda item: order.index(item[0])))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        TARGET.write_text(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
