"""Compares the replay with PyTorch's own allocator, to the byte: random programs for every setting and
release of torch.

    python scripts/replay/differential.py [--python PYTHON]… [--programs N] [--minutes N]

`random_programs.py` drives PyTorch's own allocator on a virtual GPU. `memfit replay` then replays each
program's trace; every address, every segment event, the blocks at the end and the statistics are compared.
Without `--python`, the releases are those of `scripts/tables/matrix.toml`, whose environments are created.
Each call resumes where the last one stopped, and adds its counts to `measurements/differential.json` and
`measurements/differential.md`. A trace whose replay differs is kept under `target/differential`, and replayed
again by the next call: `--programs 0` does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "measurements/differential.json"
KEPT = ROOT / "target/differential"
# Before Hopper, torch 2.13 itself fails with expandable segments (pytorch#186375).
CARD = "h100"
# Small, so that programs run out of it: retries, garbage collection and refusals are hard to predict.
MEMORY = "1GiB"
# Programs of a setting per group: keeps the traces on disk small.
TURN = 10
# A trace does not always tell a request that was tried again from an emptied cache, and says nothing of
# requests that were refused before the device was asked.
NOT_TRACED = ("num_alloc_retries", "num_sync_all_streams", "num_oom_rejections")
TALLIES = ("addresses", "segments", "blocks")


def memfit() -> list[str]:
    sys.path.insert(0, str(ROOT / "benches"))
    from whole_run import memfit as installed

    return [os.environ.get("MEMFIT_COMMAND") or installed()]


def programs(python: str, folder: Path, first: int, count: int, steps: int) -> None:
    """Has PyTorch's allocator run programs of every setting, each leaving its trace in a folder."""
    script = [python, str(ROOT / "scripts/replay/random_programs.py"), str(folder), "--each-setting"]
    script += [f"--programs={count}", f"--first={first}", f"--steps={steps}"]
    run = [
        *memfit(),
        "run",
        "--gpu",
        CARD,
        "--memory",
        MEMORY,
        "--steps",
        "0",
        "--timeout",
        "0",
        "--quiet",
        # Another run, with more room, would write its traces over these.
        "--no-prove",
        "--format",
        "json",
    ]
    done = subprocess.run([*run, "--", *script], capture_output=True, text=True, check=False)
    if not any(folder.glob("setting-*")):
        raise RuntimeError(f"no program ran:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def compare(file: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Compare the result of `memfit replay` for a trace with PyTorch's own figures."""
    command = [*memfit(), "replay", str(file), "--torch", facts["torch"], "--format", "json"]
    command += ["--card-memory", f"{facts['capacity']}B"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"wrong": f"exit status {done.returncode}: {done.stderr.strip()[-500:]}"}
    report = json.loads(done.stdout)
    found: dict[str, Any] = {name: report[name]["predicted"] for name in TALLIES}
    wrong = [
        f"{name}: {report[name]['matching']:,} of {report[name]['predicted']:,}"
        for name in TALLIES
        if report[name]["matching"] != report[name]["predicted"]
    ]
    wrong += report["mismatches"][:1] + report["problems"]
    given, ours = facts["stats"], report["statistics"]
    shared = [name for name in ours if name in given and name not in NOT_TRACED]
    if not wrong:
        wrong = [
            f"{name}: {ours[name]:,} instead of {given[name]:,}"
            for name in shared
            if ours[name] != given[name]
        ]
    found["statistics"] = len(shared)
    if wrong:
        found["wrong"] = "; ".join(wrong[:3])
    return found


def compared(folder: Path) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """Yield each trace of a folder with its facts and the result of the comparison."""
    for file in sorted(folder.glob("*.pickle")):
        facts = json.loads(file.with_suffix(".json").read_text())
        yield file, facts, compare(file, facts)


def add(to: dict[str, Any], setting: str, name: str, found: dict[str, Any], failures: int) -> None:
    """Add a program to the counts of its setting."""
    row = to.setdefault(setting, {"programs": 0, "out_of_memory": 0, "wrong": {}})
    row["programs"] += 1
    row["out_of_memory"] += failures
    for name in (*TALLIES, "statistics"):
        row[name] = row.get(name, 0) + found.get(name, 0)
    if "wrong" in found:
        row["wrong"][name] = found["wrong"]


def note_not_run(release: dict[str, Any], folder: Path) -> None:
    """Counts, by setting and reason, the turns that a setting did not go through."""
    for file in sorted(folder.glob("*.not-run")):
        facts = json.loads(file.read_text())
        reasons = release.setdefault("not_run", {}).setdefault(facts["setting"], {})
        reasons[facts["reason"]] = reasons.get(facts["reason"], 0) + 1


def one_turn(python: str, kept: dict[str, Any], turn: int, steps: int) -> None:
    """Runs and compares some programs of every setting."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = kept.get(python, {})
        programs(python, folder, known.get("next", 0), turn, steps)
        for file, facts, found in compared(folder):
            release = kept.setdefault(python, {"torch": facts["torch"], "steps": steps, "settings": {}})
            name = f"{facts['torch']}-{file.name}"
            add(release["settings"], facts["setting"], name, found, facts["failures"])
            if "wrong" in found:
                KEPT.mkdir(parents=True, exist_ok=True)
                file.replace(KEPT / name)
                file.with_suffix(".json").replace((KEPT / name).with_suffix(".json"))
        if python not in kept:
            raise RuntimeError(f"{python}: no setting ran")
        note_not_run(kept[python], folder)
        kept[python]["next"] = known.get("next", 0) + turn


def try_again(releases: list[dict[str, Any]]) -> None:
    """Replay the traces that were not predicted once more, and remove those that are predicted now."""
    wrong = [row["wrong"] for release in releases for row in release["settings"].values()]
    for file, _, found in compared(KEPT):
        if "wrong" not in found:
            for each in wrong:
                each.pop(file.name, None)
            file.unlink()
            file.with_suffix(".json").unlink()


def page(releases: list[dict[str, Any]]) -> str:
    """Format the results as a page."""
    settings = {setting for release in releases for setting in release["settings"]}
    rows = [row for release in releases for row in release["settings"].values()]
    total, wrong = sum(row["programs"] for row in rows), sum(len(row["wrong"]) for row in rows)
    said = f"the replay differs in **{wrong:,}**" if wrong else "the replay is exact in all"
    lines = [
        "# Allocator replay compared with PyTorch's own allocator",
        "",
        "Written by `scripts/replay/differential.py` (`make differential`). Random programs drive PyTorch's own caching allocator on a",
        f"virtual GPU with {MEMORY} ({CARD}; until November 2026 an rtx-3060, where torch 2.13 itself refuses expandable segments), with",
        "every release and every allocator setting that affects where blocks lie. `memfit replay` then replays each program's trace.",
        "Every address, the segment events, the blocks at the end and the allocator's statistics must equal PyTorch's.",
        "",
        f"{total:,} programs with {len(settings)} settings: {said}.",
        "",
        "- With torch 2.12 and later, a third of the programs use a memory pool of their own and a third capture CUDA graphs. Traces of",
        "  earlier releases do not say in which pool a block is.",
        "- `cudaMallocAsync` is not covered: it keeps no trace.",
        "- *Mismatches* are programs whose replay differs in any value.",
        "",
        "| torch | setting | programs | out-of-memory errors | addresses | segment events | blocks at the end | statistics | mismatches |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for release in sorted(
        releases, key=lambda release: [int(part) for part in release["torch"].split("+")[0].split(".")]
    ):
        for setting, row in release["settings"].items():
            name = f"`{setting}`" if setting else "none"
            figures = [
                row["programs"],
                row["out_of_memory"],
                *[row[name] for name in TALLIES],
                row["statistics"],
            ]
            cells = " | ".join(f"{figure:,}" for figure in figures)
            lines.append(
                f"| {release['torch'].split('+')[0]} | {name} | {cells} | {len(row['wrong']) or ''} |"
            )
    return "\n".join([*lines, *not_run(releases)]) + "\n"


def not_run(releases: list[dict[str, Any]]) -> list[str]:
    """Format what did not run: a release knows other settings, or fails under one."""
    rows = [
        f"| {release['torch'].split('+')[0]} | `{setting or 'none'}` | {turns} | {reason.replace('|', ' ')} |"
        for release in releases
        for setting, reasons in release.get("not_run", {}).items()
        for reason, turns in reasons.items()
    ]
    if not rows:
        return []
    head = ["", f"Groups of {TURN} programs that could not run, with PyTorch's message:", ""]
    return [*head, "| torch | setting | groups | message |", "|---|---|---|---|", *rows]


def write(found: list[dict[str, Any]]) -> None:
    if found:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        RECORD.with_suffix(".md").write_text(page(found))


def releases(wanted: list[str]) -> list[str]:
    """The interpreters to try."""
    if wanted:
        return wanted
    sys.path.insert(0, str(ROOT / "scripts/tables"))
    import matrix

    return [release.interpreter() for release in matrix.read()[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", action="append", default=[], help="an interpreter with torch; several may be given"
    )
    parser.add_argument("--programs", type=int, default=100, help="so many of each setting, in all")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--turn", type=int, default=TURN)
    parser.add_argument("--minutes", type=float, help="begin nothing after so long")
    arguments = parser.parse_args()
    began = time.monotonic()
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else []
    try_again(record)
    write(record)
    pythons = releases(arguments.python)
    kept: dict[str, Any] = {}
    for python in pythons:
        version = subprocess.run(
            [python, "-c", "from importlib.metadata import version; print(version('torch'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        known = [release for release in record if release["torch"].split("+")[0] == version.split("+")[0]]
        if known:
            kept[python] = known[0]
    untouched = [release for release in record if release not in kept.values()]
    for end in range(arguments.turn, arguments.programs + arguments.turn, arguments.turn):
        for python in pythons:
            late = arguments.minutes and time.monotonic() - began > 60 * arguments.minutes
            count = min(end, arguments.programs) - kept.get(python, {}).get("next", 0)
            if late or count <= 0:
                continue
            one_turn(python, kept, min(count, arguments.turn), arguments.steps)
            write([*untouched, *kept.values()])
    wrong = [
        text for release in kept.values() for row in release["settings"].values() for text in row["wrong"]
    ]
    print(
        f"{sum(row['programs'] for release in kept.values() for row in release['settings'].values())} programs, {len(wrong)} wrong"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
