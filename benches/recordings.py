"""Measures reading, replaying and explaining recordings: speed compared with CPython's pickle, events per
second, and memory for a file of gigabytes.

    python benches/recordings.py [PART…] [--folder FOLDER] [--gib 2] [--python PYTHON]

The parts are `read`, `replay`, `large` and `stacks`; without any, all. Keeps their results in
`measurements/recordings.json`, and writes `measurements/recordings.md`. The snapshots are made for it by
`big_snapshot.py`, and deleted afterwards; `FOLDER` may contain other snapshots by PyTorch. Ratios are of CPU
time within one run, so that other load affects neither side.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from view import cost, in_browser
from whole_run import ROOT, memfit

TARGET = ROOT / "measurements/recordings.md"
RESULTS = ROOT / "measurements/recordings.json"
MIB = 1024**2
GIB = 1024**3
# Smaller files of others are summarised and not replayed, which takes too little time to measure.
LEAST = 1 * MIB
# Times the speed of `pickle.load`.
WANTED = 5
READ = re.compile(r"^(.+): ([\d.]+) MiB, ([\d.]+) MiB/s, pickle\.load ([\d.]+) MiB/s, ratio ([\d.]+)$")
REPLAYED = re.compile(
    r"^(.+): (\d+) events, followed ([\d.]+) million a second, made again ([\d.]+) million a second, ([\d.]+) bytes an event$"
)


def bench(crate: str, name: str, files: list[Path]) -> str:
    command = ["cargo", "bench", "--quiet", "-p", crate, "--bench", name, "--", *map(str, files)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def rows(text: str, pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    return [found.groups() for line in text.splitlines() if (found := pattern.match(line))]


def make(file: Path, gib: float, protocol: int = 4) -> Path:
    script = [
        sys.executable,
        str(ROOT / "benches/big_snapshot.py"),
        str(file),
        str(gib),
        f"--protocol={protocol}",
    ]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    return file


def verbs(file: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Measure each verb for one file."""
    command = os.environ.get("MEMFIT_COMMAND") or memfit()
    json_only = ["--format", "json"]
    return {
        "explain": cost([command, "explain", *json_only, str(file)]),
        "replay": cost([command, "replay", *json_only, str(file)]),
        "replay --alloc-conf expandable_segments:True": cost(
            [command, "replay", *json_only, "--alloc-conf", "expandable_segments:True", str(file)]
        ),
        "view -o": cost([command, "view", "-q", str(file), "-o", str(folder / "page.html")]),
        "convert to .memfit": cost([command, "convert", "-q", str(file), str(folder / "own.memfit")]),
    }


def stacks(python: str, rounds: int = 3) -> dict[str, float]:
    """Return the median step of a ResNet-50 on a virtual GPU in milliseconds: watched, and with recorded
    stacks.
    """
    script = [python, str(ROOT / "benches/steady.py"), "--as", "watched", "--steps", "60"]
    run = [os.environ.get("MEMFIT_COMMAND") or memfit(), "run", "--gpu", "a100-80gb", "--steps", "0"]
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        ways = {"watched": [], "with stacks": ["-o", f"{folder}/run.memfit"]}
        for _ in range(rounds):
            for way, options in ways.items():
                command = [*run, "--show-output", *options, "--", *script]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                [line] = [line for line in (done.stdout + done.stderr).splitlines() if '"median_ms"' in line]
                step = json.loads(line[line.index("{") :])["median_ms"]
                best[way] = min(step, best.get(way, step))
    return best


def opened(large: dict[str, Any]) -> str:
    """Measure the page of the large snapshot, if there is a browser."""
    browser = large["browser"]
    if not browser:
        return "No Chromium was there to open the page."
    return (
        f"The page of `memfit view` has {large['page'] / MIB:,.0f} MiB.\nIn headless Chromium without a GPU it was first drawn after "
        f"{browser['opened']:.1f} s, and a frame took {browser['median']:.0f} ms\n(median; at worst {browser['worst']:.0f} ms) "
        f"while zooming from all {browser['events']:,} events into single ones."
    )


def share(name: str, part: dict[str, Any] | None, body: Callable[[dict[str, Any]], str]) -> str:
    """Format a part's section with its date; empty if it was not measured."""
    return (
        ""
        if part is None
        else f"## {name}\n\n{body(part)}\nMeasured on {part['date']}, load average {part['load']:.0f}.\n\n"
    )


def of_reading(part: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {name} | {size} MiB | {ours} MiB/s | {theirs} MiB/s | **{ratio}×** |"
        for name, size, ours, theirs, ratio in part["rows"]
    )
    least = min(float(row[4]) for row in part["rows"])
    small = sorted(float(row[4]) for row in part["small"])
    enough = sum(ratio >= WANTED for ratio in small)
    return f"""Both read a file in memory, on one core; the best of seven runs each.

| file | size | memfit | `pickle.load` | ratio |
|---|---|---|---|---|
{rows}

The lowest ratio is **{least:.1f}** (target: {WANTED}).

{of_small(small, enough)}"""


def of_small(ratios: list[float], enough: int) -> str:
    """Return the files that are too small for a row of their own."""
    if not ratios:
        return ""
    return f"""Of {len(ratios)} other files of less than 1 MiB, {enough} are read at least {WANTED} times as fast; the lowest ratio is {ratios[0]:.1f}, the median {statistics.median(ratios):.1f}. Reading one
takes from microseconds to half a millisecond. Much of that is spent on new strings, as in Python.
"""


def of_replaying(part: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {name} | {int(events):,} | {followed} | {again} | {each} |"
        for name, events, followed, again, each in part["rows"]
    )
    return f"""Millions of events per second (target: 5). *Verified*: the trace is replayed with every address compared. *Simulated*: its calls
are repeated, and the simulated allocator chooses the addresses. *Bytes per event* is the memory for an event and its block, without
strings and stacks (target: at most 40).

| file | events | verified | simulated | bytes per event |
|---|---|---|---|---|
{rows}

The simulated allocator alone, with a synthetic program like a training step under four settings, and with traces that begin when
several free segments of the same size and unknown age exist ("ties"):

```
{part["plain"].strip()}
```
"""


def of_large(part: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| `memfit {verb}` | {each['seconds']:.0f} s | {each['user']:.0f} s | {each['resident'] / GIB:.2f} GiB |"
        for verb, each in part["verbs"].items()
    )
    most = max(each["resident"] for each in part["verbs"].values()) / GIB
    return f"""A file of {part["size"] / GIB:.1f} GiB.

| | wall time | CPU time | peak memory |
|---|---|---|---|
{rows}

The highest peak is **{most:.2f} GiB** (target: 3 GiB for a file of 2 GB). {opened(part)}
"""


def of_stacks(part: dict[str, Any]) -> str:
    watched, stacked = part["watched"], part["with stacks"]
    return f"""The median step of a ResNet-50 (batch 64) on a virtual GPU: {watched:.1f} ms with the watcher, {stacked:.1f} ms with a stack for
each block as well, **{stacked / watched:.2f}×**; the minimum of three alternating runs each.
"""


def page(parts: dict[str, Any]) -> str:
    sections = [
        share("Reading a snapshot, compared with CPython's `pickle.load`", parts.get("read"), of_reading),
        share("Replaying, on one core", parts.get("replay"), of_replaying),
        share("Time and memory of each command for a large snapshot", parts.get("large"), of_large),
        share("Cost of recording stacks with `memfit run -o`", parts.get("stacks"), of_stacks),
    ]
    head = f"""# Recordings: speed and memory

Written by `python benches/recordings.py` ({os.cpu_count()} cores). Files named `made-…` are synthetic snapshots, those named `public-…` are
published snapshots of other people. Ratios are of CPU time within one run, which other processes hardly affect. Wall times were
measured while other processes ran (see the load averages). [view.md](view.md) compares making a page of a snapshot with
PyTorch's `_memory_viz`.

"""
    return head + "".join(sections).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", default=["read", "replay", "large", "stacks"])
    parser.add_argument("--folder", type=Path, help="other snapshots to read and replay as well")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and torchvision")
    arguments = parser.parse_args()
    others = sorted(arguments.folder.glob("*.p*kl*")) if arguments.folder else []
    small = [file for file in others if file.stat().st_size < LEAST]
    others = [file for file in others if file.stat().st_size >= LEAST]
    parts = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}

    def keep(name: str, found: dict[str, Any]) -> None:
        parts[name] = {"date": str(datetime.date.today()), "load": os.getloadavg()[0], **found}
        RESULTS.write_text(json.dumps(parts, indent=1) + "\n")
        TARGET.write_text(page(parts))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Numbers stand for other people's names.
        shown = [folder / f"public-{number}.pickle" for number, _ in enumerate(others, 1)]
        for link, file in zip(shown, others, strict=True):
            link.symlink_to(file.resolve())
        if {"read", "replay"} & set(arguments.parts):
            shown = [make(folder / f"made-protocol-{each}.pickle", 1 / 16, each) for each in (2, 4)] + shown
        if "read" in arguments.parts:
            few = rows(bench("memfit-recording", "pickle", small), READ) if small else []
            # Only what is counted: the names are other people's.
            few = [("", *row[1:]) for row in few]
            keep("read", {"rows": rows(bench("memfit-recording", "pickle", shown), READ), "small": few})
        if "replay" in arguments.parts:
            found = rows(bench("memfit-allocator", "throughput", shown), REPLAYED)
            keep("replay", {"rows": found, "plain": bench("memfit-allocator", "throughput", [])})
        if "large" in arguments.parts:
            file = make(folder / "large.pickle", arguments.gib)
            large: dict[str, Any] = {"size": file.stat().st_size, "verbs": verbs(file, folder)}
            written = folder / "page.html"
            keep("large", {**large, "page": written.stat().st_size, "browser": in_browser(written)})
    if "stacks" in arguments.parts:
        keep("stacks", stacks(arguments.python))


if __name__ == "__main__":
    main()
