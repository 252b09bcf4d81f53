"""Fuzzes the readers for hours, alternating between targets, and counts inputs and time.

    sh scripts/fuzz.sh 1                                     # builds the targets
    python scripts/fuzz_hours.py [--hours 1] [TARGET…]       # adds to measurements/fuzz.json, writes fuzz.md
    python scripts/fuzz_hours.py --minimise   # writes the minimised corpus to fuzz/corpus/TARGET.tar.gz

Each target runs for a minute at a time, so that the script can be stopped and resumed. Seconds are CPU time,
since a fuzzer gets little of the wall time on a busy machine. The committed corpus is the engine's merge of
all found inputs: the smallest ones that together reach everything that was reached. `scripts/fuzz.sh` unpacks
it, so that each run continues where the last one ended.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FUZZ = ROOT / "fuzz"
RESULTS = ROOT / "measurements/fuzz.json"
TARGET = ROOT / "measurements/fuzz.md"
# The readers of files from others, the verbs that use them, and their names in the table.
READERS = {
    "snapshot": "memory snapshots (pickle)",
    "replay": "snapshots: replayed, explained and shown",
    "recording": "`.memfit` recordings: explained and shown",
    "trace": "profiler traces: explained and shown",
    "database": "Nsight Systems' SQLite files: explained and shown",
    "page": "HTML pages and notebooks",
    "packed": "gzip, zstd and xz",
    "oom_text": "logs",
    "open": "any file: its format is recognised by its first bytes",
    "export": "snapshots: exported",
    "source": "Python files and notebooks: checked and fixed",
    "image": "images of all supported formats",
}
LARGEST = 65536
# A starved fuzzer is slow by the clock: only what takes this long is looked at.
TIMEOUT = 300
SEEN = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


def binary(target: str) -> Path:
    [found] = FUZZ.glob(f"target/*/release/{target}")
    return found


def unpack(target: str, folder: Path) -> None:
    """Return the committed corpus with the inputs found since."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = FUZZ / "corpus" / f"{target}.tar.gz"
    if packed.is_file():
        with tarfile.open(packed) as tar:
            tar.extractall(folder, filter="data")
    for seed in (FUZZ / "corpus" / target).glob("*"):
        shutil.copy(seed, folder)


def turn(target: str, seconds: int, found: Path) -> dict[str, Any]:
    """Run a target once; return the result."""
    artifacts = FUZZ / "artifacts"
    artifacts.mkdir(exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            str(binary(target)),
            str(found),
            f"-max_total_time={seconds}",
            "-rss_limit_mb=3000",
            f"-timeout={TIMEOUT}",
            f"-max_len={LARGEST}",
            f"-artifact_prefix={artifacts}/{target}-",
            "-print_final_stats=1",
            "-reduce_inputs=1",
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    executed = re.search(r"stat::number_of_executed_units: *(\d+)", done.stderr)
    seen = SEEN.findall(done.stderr)
    if done.returncode:
        print(f"{target} fell: {done.stderr[-1500:]}", file=sys.stderr, flush=True)
    return {
        "inputs": int(executed[1]) if executed else 0,
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "coverage": int(seen[-1][0]) if seen else 0,
        "features": int(seen[-1][1]) if seen else 0,
        "fell": int(bool(done.returncode)),
    }


def keep(target: str, came: dict[str, Any]) -> dict[str, Any]:
    """Add a run to the counts. Several processes may do so, each with its own targets."""
    with (FUZZ / "target/.counting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return counted(target, came)


def counted(target: str, came: dict[str, Any]) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    known = counts.setdefault(
        target, {"inputs": 0, "seconds": 0.0, "coverage": 0, "features": 0, "fell": 0, "corpus": 0}
    )
    for name in ("inputs", "seconds", "fell"):
        known[name] += came[name]
    for name in ("coverage", "features"):
        known[name] = max(known[name], came[name])
    RESULTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    TARGET.write_text(page(counts))
    return known


def page(counts: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| `{target}` | {what} | {row['inputs']:,} | {row['seconds']:,.0f} | {row['coverage']:,} | {row['corpus']:,} |"
        for target, what in READERS.items()
        if (row := counts.get(target))
    )
    total = {name: sum(row[name] for row in counts.values()) for name in ("inputs", "seconds")}
    return f"""# Fuzzing the file readers

Written by `python scripts/fuzz_hours.py`. Coverage-guided fuzzing (libFuzzer) of all code that reads files: {total["inputs"]:,} inputs
in {total["seconds"] / 60:,.1f} minutes of CPU time. The compiler's own instrumentation is used, without a sanitizer: integer overflows,
bounds and assertions are checked. *Edges* are the control-flow edges that were reached, *corpus* is the number of inputs that
remain after minimising.

| target | reads | inputs | CPU seconds | edges | corpus |
|---|---|---|---|---|---|
{rows}
"""


def minimise(target: str, found: Path) -> int:
    """Merge new inputs into the committed corpus, and print how many inputs remain."""
    with tempfile.TemporaryDirectory() as name:
        merged = Path(name) / "merged"
        merged.mkdir()
        # Large inputs reach little that small ones do not, and weigh on every clone.
        command = [str(binary(target)), "-merge=1", "-max_len=8192", str(merged), str(found)]
        subprocess.run(command, capture_output=True, check=True)
        inputs = sorted(merged.iterdir())
        with tarfile.open(FUZZ / "corpus" / f"{target}.tar.gz", "w:gz", compresslevel=9) as tar:
            for file in inputs:
                # No times and owners: the same inputs are the same file.
                entry = tarfile.TarInfo(file.name)
                content = file.read_bytes()
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return len(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=list(READERS))
    parser.add_argument("--hours", type=float, default=1.0, help="of processor time, of all targets together")
    parser.add_argument("--turn", type=int, default=60, help="seconds by the clock")
    parser.add_argument(
        "--found", type=Path, default=FUZZ / "target/found", help="where what is found is kept"
    )
    parser.add_argument("--minimise", action="store_true")
    arguments = parser.parse_args()
    if arguments.minimise:
        counts = json.loads(RESULTS.read_text())
        for target in arguments.targets:
            counts.setdefault(target, {"inputs": 0, "seconds": 0.0, "coverage": 0, "features": 0, "fell": 0})
            counts[target]["corpus"] = minimise(target, arguments.found / target)
            print(target, counts[target]["corpus"], flush=True)
            RESULTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
            TARGET.write_text(page(counts))
        return
    for target in arguments.targets:
        unpack(target, arguments.found / target)
    spent = 0.0
    while spent < arguments.hours * 3600:
        for target in arguments.targets:
            came = turn(target, arguments.turn, arguments.found / target)
            spent += came["seconds"]
            known = keep(target, came)
            print(
                f"{target}: {known['inputs']:,} inputs, {known['seconds']:.0f} s, load {os.getloadavg()[0]:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
