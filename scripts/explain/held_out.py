"""Measures how often `memfit explain` is right about scripts that it was not developed with.

    python scripts/explain/held_out.py first second # rewrites measurements/explain.json and explain.md
    python scripts/explain/held_out.py second --only giant   # some of them, printed and not written

Each script of `scripts/explain/SET/` states in its docstring the true cause (`cause:`; several, separated by
a bar, if any of them is right), a text on the line to blame (`line:`; several, separated by a bar; empty if
no line is to blame) and, from the seventh set on, the right remedies (`remedy:`, names of levers); from the
tenth set on, also remedies that would be false (`false:`, for readers only). It runs on a virtual T4 with
3 GiB, once as a recording of `memfit run -o`, which also tries the first remedies, and, if it is a single
process, once more for PyTorch's own snapshot. A script that writes a snapshot itself (`snapshot:`, the file's
name) is explained from that alone. An answer counts as right if its cause is one
that the script names; lines and remedies are counted separately, over the scripts that ran out of memory. A
larger GPU always helps, and does not count as a remedy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DRIVER = ROOT / "tests" / "python" / "broken_driver.py"
CARD = ["--gpu", "t4", "--memory", "3GiB", "--steps", "0"]
# Causes that lie outside the process: its own snapshot does not show them.
OUTSIDE = ("other-processes", "outside")
# The page's words for the ways in which a remedy is applied.
APPLIED = {"environment": "setting", "card": "another GPU"}


LEGEND = """In the tables:

- *Cause right*: memfit names a cause that the script names. *Line right*: a line of the answer contains the text that the
  script names; "-" if no single line is the cause.
- *Right remedy first*: the first remedy is one that the script names. A larger GPU does not count.
- *Applied as*: an edit of the source, an allocator setting, another GPU, or by hand, where memfit shows no edit.
- *Another run with it*: the verdict of another run with the first remedy. "-" if there was none: by-hand remedies are not
  tried, and most sets were run with `--no-prove`.
"""


@dataclass
class Script:
    """A script, and what it says of itself."""

    path: Path
    causes: list[str]
    lines: list[str]
    remedies: list[str]
    settings: str
    snapshot: str = ""

    @staticmethod
    def read(path: Path) -> Script:
        facts = {}
        for line in path.read_text().split('"""')[1].splitlines():
            name, _, value = line.partition(":")
            if name in ("cause", "line", "remedy", "settings", "snapshot"):
                facts[name] = "|".join(filter(None, (facts.get(name), value.strip())))

        def several(name: str) -> list[str]:
            return [text.strip() for text in facts.get(name, "").split("|") if text.strip()]

        return Script(
            path,
            several("cause"),
            several("line"),
            several("remedy"),
            facts.get("settings", ""),
            facts.get("snapshot", ""),
        )


@dataclass
class Row:
    """The result of one script."""

    set: str
    script: str
    cause: str
    ran_out: bool
    recording: str | None
    snapshot: str | None
    line: bool | None
    lever: str | None
    proof: str | None
    applied: str | None
    remedy: bool | None = None

    def names(self, cause: str | None) -> bool:
        """Return `True` if the script names this cause."""
        return cause in self.cause.split("|")

    def fits(self) -> bool:
        """`True` if a run has proved the first remedy, and it is not another GPU."""
        return self.proof == "fits" and self.lever != "larger-gpu"


def memfit() -> str:
    beside = Path(sys.executable).with_name("memfit")
    found = os.environ.get("MEMFIT_COMMAND") or (str(beside) if beside.is_file() else shutil.which("memfit"))
    if not found:
        sys.exit("memfit is not installed here: `make demo` installs it")
    return found


def call(arguments: list[str], folder: Path) -> str:
    done = subprocess.run([memfit(), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.stderr.write(done.stderr[-2000:])
    return done.stdout


def explain(file: Path) -> dict[str, Any] | None:
    text = call(["explain", str(file), "--format", "json"], file.parent) if file.is_file() else ""
    return json.loads(text) if text else None


def snapshots(scripts: list[Script], folder: Path) -> dict[str, dict[str, Any]]:
    """Explain each script's snapshot, in a process of its own: hooks that a script leaves behind can hold
    memory until the process ends.
    """
    own = [script for script in scripts if not set(script.causes) & set(OUTSIDE)]
    for script in own:
        pickle = folder / f"{script.path.stem}.pickle"
        if script.snapshot:
            call(["run", *CARD, "--no-prove", "--", sys.executable, str(script.path)], folder)
            if (folder / script.snapshot).is_file():
                (folder / script.snapshot).rename(pickle)
            continue
        path = f"{script.path}" + (f"@{script.settings}" if script.settings else "")
        call(["run", *CARD, "--no-prove", "--", sys.executable, str(DRIVER), str(folder), path], folder)
    reports = {script.path.stem: explain(folder / f"{script.path.stem}.pickle") for script in own}
    return {name: report for name, report in reports.items() if report}


def judge(
    name: str,
    script: Script,
    snapshot: dict[str, Any] | None,
    folder: Path,
    recordings: bool,
    prove: bool = True,
) -> Row:
    row = Row(name, script.path.stem, "|".join(script.causes), snapshot is not None, None, None, *[None] * 4)
    row.snapshot = snapshot and snapshot["cause"]
    report = snapshot
    fixes = snapshot["fixes"] if snapshot else []
    if recordings:
        recording = folder / f"{script.path.stem}.memfit"
        command = ["--format", "json", "-o", str(recording), "--", sys.executable, str(script.path)]
        text = call(["run", *CARD, *([] if prove else ["--no-prove"]), *command], folder)
        run: dict[str, Any] = json.loads(text) if text else {}
        row.ran_out, row.recording = run.get("verdict") == "oom", run.get("cause")
        report, fixes = explain(recording), run.get("fixes") or []
        recording.unlink(missing_ok=True)
    if report and row.ran_out:
        said = [line["text"] or "" for fact in report["evidence"] for line in fact["stack"]]
        row.line = any(text in line for text in script.lines for line in said) if script.lines else None
    if row.ran_out and script.remedies:
        row.remedy = False
    if fixes:
        first = fixes[0]
        row.lever = first["lever"]
        row.proof = first["proof"] and first["proof"]["verdict"]
        kinds = ("edit", "environment", "card")
        row.remedy = row.lever in script.remedies if script.remedies else None
        row.applied = next((kind for kind in kinds if first[kind] is not None), "by hand")
    return row


def share(rows: list[Row], holds: Any, among: Any = lambda _: True) -> str:
    chosen = [row for row in rows if among(row)]
    return f"{sum(map(holds, chosen))} of {len(chosen)}"


def table(name: str, rows: list[Row]) -> str:
    counted = [
        ("cause right, from the recording", lambda row: row.names(row.recording), lambda row: row.recording),
        (
            "cause right, from PyTorch's snapshot",
            lambda row: row.names(row.snapshot),
            lambda row: row.snapshot,
        ),
        ("line right", lambda row: row.line, lambda row: row.ran_out and row.line is not None),
        ("right remedy first", lambda row: row.remedy, lambda row: row.remedy is not None),
    ]
    if any(row.recording for row in rows) and any(row.snapshot and not row.recording for row in rows):
        best = (
            "cause right, from the recording, or from the snapshot if there is no recording",
            lambda row: row.names(row.recording or row.snapshot),
            lambda row: row.recording or row.snapshot,
        )
        counted.insert(2, best)
    if any(row.proof for row in rows):
        counted += [
            ("first remedy fits in another run", lambda row: row.fits(), lambda row: row.recording),
            (
                "right remedy first, and it fits in another run",
                lambda row: row.remedy and row.fits(),
                lambda row: row.remedy is not None and row.recording,
            ),
        ]
    shares = [(what, share(rows, holds, among)) for what, holds, among in counted if any(map(among, rows))]
    title, _, version = name.partition(", ")
    out = [f"## The {title} set{version and ', '}{version}\n"]
    out += [*(f"- {what}: {figure}" for what, figure in shares), ""]
    out += [
        "| script | true cause | cause from the recording | from the snapshot | line right | first remedy | remedy right | applied as | another run with it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    mark = {True: "yes", False: "no", None: "-"}
    for row in rows:
        cells = [
            row.script,
            row.cause.replace("|", " or "),
            row.recording if row.ran_out else "did not run out",
            row.snapshot,
            mark[row.line],
            row.lever,
            mark[row.remedy],
            APPLIED.get(row.applied or "", row.applied),
            row.proof,
        ]
        out.append("| " + " | ".join(cell or "-" for cell in cells) + " |")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "sets", nargs="+", choices=sorted(path.name for path in HERE.iterdir() if path.is_dir())
    )
    parser.add_argument("--only", default="", help="scripts whose names contain this")
    parser.add_argument("--no-recordings", action="store_true", help="snapshots alone")
    parser.add_argument(
        "--no-prove",
        action="store_true",
        help="no further runs with the remedies, which take most of the time",
    )
    parser.add_argument(
        "--suffix", default="", help="behind the set's name in the table, for an older memfit's figures"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "measurements" / "explain.json")
    arguments = parser.parse_args()
    everything: dict[str, list[Row]] = {}
    for name in arguments.sets:
        paths = sorted((HERE / name).glob("*.py"))
        scripts = [Script.read(path) for path in paths if arguments.only in path.stem]
        with tempfile.TemporaryDirectory() as folder:
            said = snapshots(scripts, Path(folder))
            rows = []
            for script in scripts:
                if arguments.no_recordings and set(script.causes) & set(OUTSIDE):
                    continue
                snapshot = said.get(script.path.stem)
                prove = not arguments.no_prove
                recordings = not arguments.no_recordings and not script.snapshot
                rows.append(judge(name, script, snapshot, Path(folder), recordings, prove))
                print(rows[-1], file=sys.stderr, flush=True)
        everything[name + arguments.suffix] = rows
        print(table(name, rows), flush=True)
    if not arguments.only:
        write(arguments.json, everything)


def write(file: Path, everything: dict[str, list[Row]]) -> None:
    known: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    known.update({name: [asdict(row) for row in rows] for name, rows in everything.items()})
    file.write_text(json.dumps(known, indent=1) + "\n")
    file.with_suffix(".md").write_text(page(known))


def page(known: dict[str, Any]) -> str:
    """Format the results of all sets as a page."""
    head = [
        "# `memfit explain` on scripts that it was not developed with\n",
        "Written by `python scripts/explain/held_out.py SET…`; its docstring says what is counted. Each script runs out of memory for a",
        "known reason, and `memfit explain` has to find the cause, the line and a remedy. A set is no longer an independent test once",
        "its results were used to improve the reasoning.\n",
        f"Python {platform.python_version()}, a virtual T4 with 3 GiB.\n",
        LEGEND,
        (HERE / "sets.md").read_text(),
    ]
    tables = [table(name, [Row(**row) for row in rows]) for name, rows in sorted(known.items())]
    return "\n".join([*head, *tables])


if __name__ == "__main__":
    main()
