"""Checks that edits proposed by `memfit explain` keep losses and gradients, on the host in float64.

    python scripts/explain/gradients.py first second … # rewrites measurements/gradients.json and gradients.md
    python scripts/explain/gradients.py second --only gan    # some of them, printed and not written

Each script of `scripts/explain/SET/` runs out of memory on a virtual T4 with 3 GiB, for PyTorch's own
snapshot; several scripts share a process, which is one import of torch. Reports of recordings, as
`memfit run --format json` and `memfit explain --format json` print them, are used as well if `--reports`
names their folder (`SET-SCRIPT.json`, `SET-SCRIPT.explain.json`). `--snapshots` names a folder where the
snapshots stay, and where those of an earlier run are found. Every remedy with a diff that is labelled `exact`
or `rounding` is applied. The script and the changed script then run on the CPU in float64 (`on_host.py`),
both with the large integers in the source divided: those from 64 on by 32 if the script still runs then, else
by eight, else those from 256 or 1024 on by eight, else none. Losses, gradients before each
optimizer step, results of `autograd.grad`, what modules return to the script, and printed numbers are
compared; they may differ by rounding only.

A remedy counts as verified only if a line of its diff ran and there was something to compare. If numbers
differ, the original runs again: numbers that differ between two runs of the original are ignored.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import multiprocessing
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import held_out
import on_host

ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
]
REPORT = held_out.ROOT / "measurements" / "gradients.json"
# Relative difference that counts as rounding, over the at most 60 records of a run.
TOLERANCE = 1e-6
# By attempt: the least whole number of the source that is divided, and by how much.
SIZES = ((64, 32), (64, 8), (256, 8), (1024, 8), (1, 1))
LABELS = ("exact", "rounding")
# Scripts that run one after another in a process.
TOGETHER = 8
WORKERS = 2


@dataclass
class Row:
    """The result of one remedy of one script."""

    set: str
    script: str
    lever: str
    label: str
    source: str
    kept: bool | None
    """`None` if nothing was compared."""
    why: str
    compared: dict[str, int]
    difference: float | None


def snapshots(scripts: list[held_out.Script], folder: Path) -> None:
    """Write the snapshots that the folder lacks; a script whose process broke down has none."""
    own = [
        script
        for script in scripts
        if not set(script.causes) & set(held_out.OUTSIDE)
        and not (folder / f"{script.path.stem}.pickle").exists()
    ]
    for first in range(0, len(own), TOGETHER):
        paths = [
            f"{script.path}" + (f"@{script.settings}" if script.settings else "")
            for script in own[first : first + TOGETHER]
        ]
        driver = [sys.executable, str(held_out.DRIVER), str(folder), *paths]
        held_out.call(["run", *held_out.CARD, "--no-prove", "--", *driver], folder)


def remedies(
    name: str, script: held_out.Script, folder: Path, given: Path | None
) -> tuple[list[dict[str, Any]], bool]:
    """Return the remedies with a diff, each once, and if there was a report at all."""
    reports = [("snapshot", held_out.explain(folder / f"{script.path.stem}.pickle"))]
    files = given.glob(f"{name}-{script.path.stem}.*json") if given else []
    reports += [("recording", json.loads(file.read_text() or "null")) for file in files]
    found: dict[str, dict[str, Any]] = {}
    for source, report in reports:
        for fix in (report and report["fixes"]) or []:
            if fix["edit"] and fix["label"] in LABELS:
                found.setdefault(fix["edit"]["diff"].split("\n", 2)[2], {**fix, "source": source})
    return list(found.values()), any(report for _, report in reports)


def patched(text: str, diff: str) -> tuple[str, set[int], set[int]]:
    """Apply a unified diff; also return the lines that it adds and those that it takes away."""
    old, new, at = text.splitlines(), [], 0
    added, removed = set(), set()
    for line in diff.splitlines()[2:]:
        if line.startswith("@@"):
            start, count = map(int, re.match(r"@@ -(\d+),?(\d*) ", line).expand(r"\1 \g<2>").split())  # type: ignore[union-attr]
            start -= 1 if count else 0
            new += old[at:start]
            at = start
        elif line.startswith("+"):
            new.append(line[1:])
            added.add(len(new))
        else:
            if old[at] != line[1:]:
                raise ValueError(f"the diff does not fit the source: {line}")
            at += 1
            if line.startswith(" "):
                new.append(line[1:])
            else:
                removed.add(at)
    return "\n".join(new + old[at:]) + "\n", added, removed


def smaller(text: str, least: int, divisor: int) -> str:
    """Divide the whole numbers of a source that are this large; lines stay where they are."""
    if divisor == 1:
        return text
    lines = text.splitlines(keepends=True)
    places = [
        (node.lineno - 1, node.col_offset, node.end_col_offset, node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= least
    ]
    for line, start, end, value in sorted(places, reverse=True):
        raw = lines[line].encode()
        lines[line] = (raw[:start] + str(max(8, value // divisor)).encode() + raw[end:]).decode()
    return "".join(lines)


def run(text: str, name: str, folder: Path, lines: set[int]) -> dict[str, Any]:
    """Run a source on the host."""
    # Both versions have the same path, since random numbers follow it.
    script = folder / f"{name}.py"
    script.write_text(text)
    return on_host.run(script, lines)


def runs(report: dict[str, Any]) -> bool:
    return report["ended"] in ("ended", "out of time")


def numbers(record: list[Any]) -> Iterator[tuple[float, float]]:
    """Yield the values of a record, each with the size to which its error is relative."""
    norms = [each[0] for each in record if isinstance(each, list)]
    least = 1e-6 * max(norms, default=0.0)
    for each in record:
        if isinstance(each, list):
            yield from ((value, max(each[0], least)) for value in each)
        elif each is not None:
            yield each, abs(each)


def apart(one: list[Any], other: list[Any]) -> float:
    """Return the largest relative difference of two records; infinite if they are of different shape."""
    ours, theirs = list(numbers(one)), list(numbers(other))
    if len(ours) != len(theirs) or len(one) != len(other):
        return math.inf
    worst = 0.0
    for (a, scale), (b, _) in zip(ours, theirs, strict=True):
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        share = abs(a - b) / scale if scale else math.inf
        worst = max(worst, math.inf if math.isnan(share) else share)
    return worst


@dataclass
class Compared:
    """The comparison of two runs."""

    counts: dict[str, int]
    worst: float
    where: str


def compare(first: dict[str, Any], again: dict[str, Any], changed: dict[str, Any]) -> Compared:
    """Compare a changed run with two runs of the original."""
    result = Compared({}, 0.0, "")
    whole = first["ended"] == changed["ended"] == "ended"
    for kind, records in first["kinds"].items():
        theirs = changed["kinds"].get(kind, [])
        repeated = again["kinds"].get(kind, [])
        if whole and len(repeated) == len(records) != len(theirs):
            result.worst, result.where = math.inf, f"{len(records)} {kind} became {len(theirs)}"
        for index, (one, same, other) in enumerate(zip(records, repeated, theirs, strict=False)):
            if apart(one, same) > TOLERANCE:
                continue
            result.counts[kind] = result.counts.get(kind, 0) + 1
            share = apart(one, other)
            if share > result.worst:
                result.worst, result.where = share, f"{kind}, number {index + 1}"
    return result


def judge(name: str, script: held_out.Script, fixes: list[dict[str, Any]], folder: Path) -> list[Row]:
    """Compare each changed script with the original."""
    text, rows = script.path.read_text(), []
    originals: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def original(size: tuple[int, int], again: bool = False) -> dict[str, Any]:
        runs_of_it = originals.setdefault(size, [])
        # A removed line counts where it ran, so all lines are noted.
        lines = set(range(1, len(text.splitlines()) + 1))
        while len(runs_of_it) < 1 + again:
            runs_of_it.append(run(smaller(text, *size), script.path.stem, folder, lines))
        return runs_of_it[-1] if again else runs_of_it[0]

    for fix in fixes:
        row = Row(name, script.path.stem, fix["lever"], fix["label"], fix["source"], None, "", {}, None)
        rows.append(row)
        if Path(fix["edit"]["file"]).name != script.path.name:
            row.why = "the edit is in another file"
            continue
        try:
            after, added, removed = patched(text, fix["edit"]["diff"])
        except (ValueError, IndexError) as error:
            row.kept, row.why = False, str(error)
            continue
        row.why = "the script does not run on the host"
        for size in SIZES:
            before = original(size)
            if not runs(before) or not any(before["kinds"].values()):
                row.why = f"the script does not run on the host: {before['ended'][:100]}"
                if before["ended"] == on_host.TOO_LONG:
                    break
                continue
            changed = run(smaller(after, *size), script.path.stem, folder, added)
            if not runs(changed):
                row.kept, row.why = False, f"the changed script does not run: {changed['ended'][:100]}"
                break
            if not (changed["ran"] or removed & set(before["ran"])):
                row.why = "no line of the diff ran there"
                continue
            result = compare(before, before, changed)
            if result.worst > TOLERANCE:
                result = compare(before, original(size, again=True), changed)
            row.compared, row.difference = result.counts, result.worst
            if not result.counts:
                row.why = "two runs of the script differ, or it computes nothing to compare"
                continue
            row.kept = result.worst <= TOLERANCE
            row.why = "" if row.kept else f"they differ: {result.where}"
            break
    for row in rows:
        print(row, file=sys.stderr, flush=True)
    return rows


def summary(rows: list[Row]) -> list[str]:
    out = [
        "| remedy | label | edits | same numbers | different numbers or failed | not compared |",
        "|---|---|---|---|---|---|",
    ]
    for lever, label in sorted({(row.lever, row.label) for row in rows}):
        of = Counter(row.kept for row in rows if row.lever == lever)
        out.append(f"| {lever} | {label} | {of.total()} | {of[True]} | {of[False]} | {of[None]} |")
    of = Counter(row.kept for row in rows)
    out.append(f"| all | | {of.total()} | {of[True]} | {of[False]} | {of[None]} |")
    return out


def write(known: dict[str, list[dict[str, Any]]]) -> None:
    REPORT.write_text(json.dumps(known, indent=1) + "\n")
    REPORT.with_suffix(".md").write_text(page(known))


def page(known: dict[str, list[dict[str, Any]]]) -> str:
    """Format the results of all sets as a page."""
    rows = [Row(**row) for _, each in sorted(known.items()) for row in each]
    kept = sum(1 for row in rows if row.kept)
    with_gradients = sum(1 for row in rows if row.kept and row.compared.get("gradients"))
    head = [
        "# Do remedies labelled `exact` or `rounding` keep losses and gradients?\n",
        "Written by `python scripts/explain/gradients.py SET…`. `memfit explain` proposes edits for scripts that run out of memory.",
        "Each edit labelled `exact` or `rounding` is applied, and the original and the edited script run on the CPU in float64, with",
        "smaller sizes. Losses, gradients, module outputs and printed numbers must agree: relative differences of up to",
        f"{TOLERANCE:g} count as rounding. The script's docstring has the details. The scripts are those of [explain.md](explain.md).\n",
        "The remedies of the ninth set are from before one of them was fixed: the edit that fails called `detach` on an object that",
        "contains tensors. Those of the tenth set are from before another one was fixed, which called `detach` on a number.\n",
        f"Python {platform.python_version()}. Sets: {', '.join(sorted(known, key=ORDINALS.index))}.\n",
        *summary(rows),
        "",
        f"*Same numbers*: all that was compared is equal. For {with_gradients} of the {kept} edits this includes gradients before optimizer",
        "steps. Most of the other scripts only run inference.\n",
    ]
    tables = []
    for name in sorted(known):
        tables += [
            f"## The {name} set\n",
            "| script | remedy | label | proposed from | numbers | largest difference | compared |",
        ]
        tables.append("|---|---|---|---|---|---|---|")
        for row in (Row(**each) for each in known[name]):
            said = {True: "same", False: f"different: {row.why}", None: f"not compared: {row.why}"}[row.kept]
            counts = ", ".join(f"{count} {kind}" for kind, count in row.compared.items())
            apart = "-" if row.difference is None else f"{row.difference:.1g}"
            cells = [row.script, row.lever, row.label, row.source, said, apart, counts or "-"]
            tables.append(
                "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
            )
        tables.append("")
    return "\n".join([*head, *tables])


def sets() -> list[str]:
    """Return the names of the sets."""
    return sorted({path.parent.name for path in held_out.HERE.glob("*/*.py")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", choices=sets())
    parser.add_argument("--only", default="", help="scripts whose names contain this")
    parser.add_argument("--snapshots", type=Path, help="folder of the snapshots")
    parser.add_argument("--reports", type=Path, help="folder with reports of recordings")
    arguments = parser.parse_args()
    known: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.is_file() else {}
    for name in arguments.sets:
        paths = sorted((held_out.HERE / name).glob("*.py"))
        scripts = [held_out.Script.read(path) for path in paths if arguments.only in path.stem]
        rows: list[Row] = []
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            kept = (arguments.snapshots or folder) / name
            kept.mkdir(parents=True, exist_ok=True)
            snapshots(scripts, kept)
            jobs = []
            for script in scripts:
                fixes, reported = remedies(name, script, kept, arguments.reports)
                jobs.append((name, script, fixes, folder))
                if not reported:
                    print(f"{script.path.stem}: no report", file=sys.stderr, flush=True)
            # The workers are forks, which have imported torch.
            with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
                for found in pool.starmap(judge, jobs, chunksize=1):
                    rows += found
        print("\n".join(summary(rows)), flush=True)
        if not arguments.only:
            known[name] = [asdict(row) for row in rows]
            write(known)


if __name__ == "__main__":
    main()
