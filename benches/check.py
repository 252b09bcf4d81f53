"""Measures the speed of `memfit check` on thousands of files of public code, and on one file.

    python benches/check.py [--memfit COMMAND] [--cache FOLDER] [--write measurements/check.md]

The files are those of scripts/corpus/run.py, package by package in the order of its lists, until there are
3,000 of them, checked by one command. Each figure is the median of several runs with a warm page cache, and
the minimum, since other load can only make a run slower. The command must be a release build.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts/corpus"))

from run import fetch, parts  # noqa: E402

FILES = 3000
ONE = ROOT / "examples/classifier/train.py"


def timed(command: list[str], folder: Path) -> tuple[float, float]:
    """Return wall time and CPU time of a command, in milliseconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 1, 2), done.stderr.decode()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * wall, 1000 * cpu


def row(name: str, wanted: str, command: list[str], folder: Path, runs: int) -> str:
    timed(command, folder)
    wall, cpu = zip(*(timed(command, folder) for _ in range(runs)), strict=True)
    print(f"{name}: {statistics.median(wall):.0f} ms, at least {min(wall):.0f}", flush=True)
    return (
        f"| {name} | {statistics.median(wall):.0f} ms | {min(wall):.0f} ms "
        f"| {statistics.median(cpu):.0f} ms | {wanted} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memfit", default=shutil.which("memfit"))
    parser.add_argument("--cache", type=Path, default=ROOT / "target/corpus")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    memfit = str(Path(arguments.memfit).resolve())
    chosen: list[Path] = []
    files = lines = 0
    for part in parts(arguments.cache).values():
        if files >= FILES:
            break
        for _, package in sorted(fetch(part).items()):
            if files >= FILES:
                break
            chosen.append(package)
            for file in package.rglob("*.py"):
                files += 1
                lines += file.read_bytes().count(b"\n")
    command = [memfit, "--isolated", "check", "--format", "concise"]
    name = f"{files:,} files, {lines:,} lines, {len(chosen)} packages"
    rows = [
        row(name, "1000 ms for 3,000", [*command, *map(str, chosen)], ROOT, arguments.runs),
        row("one file, the example", "50 ms", [*command, str(ONE)], ROOT, 3 * arguments.runs),
    ]
    load = os.getloadavg()[0]
    text = "\n".join(
        [
            "# The speed of `memfit check`",
            "",
            f"Written by `python benches/check.py --write measurements/check.md` ({time.strftime('%Y-%m-%d')}; "
            f"{os.cpu_count()} cores, load average of the last minute {load:.1f}, including this benchmark). As always, `memfit check` "
            "skips files without PyTorch training code after a quick text search. *Target* is the limit for the wall time.",
            "",
            "| | wall time, median | minimum | CPU time, median | target |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )
    if arguments.write:
        arguments.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
