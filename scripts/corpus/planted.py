"""Builds the scripts with planted bugs of planted.jsonl; counts how many of the bugs `memfit check` names.

    python scripts/corpus/planted.py --mirror FOLDER [--set first|second|...|thirteenth]
        [--memfit COMMAND] [--cache FOLDER]
        [--write measurements/check-planted[-second|...|-thirteenth].md]
    python scripts/corpus/planted.py --mirror FOLDER [--set first|...|thirteenth] --verify

Each bug is in its own copy of a public repository, which is read from a git directory in the folder of
`--mirror`, as in run.py. A bug counts as found if a rule for its kind is reported within a few lines of it,
and was not reported there before. The run fails if an error or warning on an unchanged repository has no
label in the set's file of labels, or if a fixed false finding is back. `--verify` applies the edits and
parses the results; it runs no linter.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run  # noqa: E402

# The rules that stand for each kind.
KINDS = HERE / "planted-kinds.toml"
# Maximum distance of a finding from the bug: a statement of several lines is reported at its first or last
# one.
NEAR = 3
# Files that state which PyTorch a project is for.
REQUIREMENTS = re.compile(
    r".*(install|env|setup|conda).*\.sh|.*requirements.*\.txt|.*(requirements|environment|conda).*\.ya?ml|setup\.cfg|pyproject\.toml|Dockerfile.*"
)


@dataclass(frozen=True)
class PlantedSet:
    """Bugs that were planted at one time, and the files about them."""

    name: str
    bugs: Path
    # What was said of the findings on the unchanged repositories, and what earlier readings found.
    labels: Path
    readings: Path
    # The parts of the bugs, as the page names them.
    titles: dict[str, str]
    # The heading of the page, and what it says first about the set.
    heading: str
    about: str
    # What the planter knew of the linter.
    blindness: str = "before their planter had seen a rule of the linter"


# In the order in which they were planted, each after the rules had been mended on those before.
NAMES = (
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
    "twelfth",
    "thirteenth",
)
# The planters of these sets had seen the file of kinds, in which the rules stand as well.
KNOWING_NAMES = (*NAMES[3:7], *NAMES[8:])


def suffix_of(name: str) -> str:
    """The end of the names of a set's page and files."""
    return "" if name == "first" else f"-{name}"


def planted_set(name: str) -> PlantedSet:
    titles = {name: f"bugs of the {name} set"}
    article = "an" if name in ("eighth", "eleventh") else "a"
    heading = f"`memfit check` on {article} {name} set of planted bugs"
    before = NAMES[: NAMES.index(name)]
    links = ", ".join(f"[{each}](check-planted{suffix_of(each)}.md)" for each in before)
    about = (
        f"This set was planted blind, after the rules had been mended on the sets before ({links}): its first "
        "reading says how the mended rules do on code that they have not seen."
    )
    if name == "first":
        titles = {"read": "bugs on which the rules were mended", "unread": "bugs of the unread third"}
        heading = "`memfit check` on planted bugs"
        about = (
            "A third of the repositories stayed unread while the rules were mended on the others: only its first "
            "reading says how the mended rules did on code that they had not seen. Since then they were mended on its "
            "misses as well, so that the last column is of code that was read."
        )
    files = [
        HERE / f"planted{suffix_of(name)}{kind}" for kind in (".jsonl", "-labels.toml", "-readings.toml")
    ]
    chosen = PlantedSet(name, *files, titles, heading, about)
    if name in KNOWING_NAMES:
        return replace(
            chosen, blindness="by someone who knew of the rules only the names in planted-kinds.toml"
        )
    return chosen


SETS = {name: planted_set(name) for name in NAMES}


@dataclass(frozen=True)
class Bug:
    """A planted bug: the changed copy of a script, and where a careful reader would name it.

    An edit has lines of the planter alone. `at` and `remove` count lines of the original, of which those from
    `at` to `to` may have lost `dedent` columns before; `insert` stands before line `at`. `line` is where the
    bug is in the changed copy, `also` are other places of it. In a notebook, edits count lines of the file,
    and `line` counts those of cell number `cell`, from 1 over all cells.
    """

    repository: str
    commit: str
    path: str
    line: int
    also: tuple[str, ...]
    kind: str
    why: str
    edits: tuple[dict[str, Any], ...]
    cell: int | None = None
    # What a careful reader would call it: error, warning or note.
    severity: str | None = None

    @property
    def folder(self) -> str:
        return self.repository.replace("/", "+")

    @property
    def name(self) -> str:
        cell = "" if self.cell is None else f"#{self.cell}"
        return f"{self.repository}/{self.path}{cell}:{self.line}"

    @property
    def key(self) -> str:
        return f"{self.name} {self.kind}"

    @property
    def is_unread(self) -> bool:
        """A third of the repositories, by a hash of the name: their results are read last."""
        return hashlib.sha256(self.repository.encode()).digest()[0] % 3 == 0

    def places(self) -> list[tuple[str, int]]:
        others = (place.rsplit(":", 1) for place in self.also)
        return [(self.path, self.line), *((path, int(line)) for path, line in others)]


def read_bugs(chosen: PlantedSet) -> list[Bug]:
    listed = [json.loads(line) for line in chosen.bugs.read_text().splitlines()]
    return [
        Bug(**{**bug, "also": tuple(bug.get("also", ())), "edits": tuple(bug["edits"])}) for bug in listed
    ]


def changed(text: str, edits: tuple[dict[str, Any], ...]) -> str:
    """The text with a bug in it."""
    lines = text.split("\n")
    for edit in edits:
        if "dedent" in edit:
            for index in range(edit["at"] - 1, edit["to"]):
                lines[index] = lines[index][edit["dedent"] :] if lines[index].strip() else lines[index]
    # From the end, so that the numbers of the lines before stay; an insert before a line that is replaced
    # comes after the replacement was made.
    others = [edit for edit in edits if "dedent" not in edit]
    for edit in sorted(others, key=lambda edit: (-edit["at"], -edit["remove"])):
        lines[edit["at"] - 1 : edit["at"] - 1 + edit["remove"]] = edit["insert"]
    return "\n".join(lines)


def export(folder: Path, bug: Bug, mirror: Path) -> None:
    """Writes the texts of a repository, where they do not lie already."""
    if folder.exists():
        return
    where = next(path for path in (mirror / bug.folder).rglob("HEAD") if path.parent.name != "logs").parent
    git = ["git", "--git-dir", str(where)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-z", "--name-only", bug.commit], capture_output=True, check=True
    )
    for name in listed.stdout.decode(errors="surrogateescape").split("\0"):
        if Path(name).suffix not in run.TEXTS and not REQUIREMENTS.fullmatch(Path(name).name):
            continue
        shown = subprocess.run([*git, "show", f"{bug.commit}:{name}"], capture_output=True, check=False)
        if shown.returncode == 0:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(shown.stdout)
    # As in a clone, the repository is the project.
    (folder / ".git").mkdir(parents=True, exist_ok=True)


def check(memfit: str, folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [memfit, "--isolated", "check", ".", "--format", "json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1, 2), done.stderr
    found = json.loads(done.stdout)["findings"]
    return [{**one, "file": one["file"].removeprefix("./")} for one in found]


def near(finding: dict[str, Any], bug: Bug) -> bool:
    return finding.get("cell") == bug.cell and any(
        finding["file"] == path and abs(finding["line"] - line) <= NEAR for path, line in bug.places()
    )


def new_findings(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings of the changed copy, without as many of each rule and file as there were before."""
    old = Counter((finding["rule"], finding["file"]) for finding in before)
    count = Counter((finding["rule"], finding["file"]) for finding in after)
    return [
        finding
        for finding in after
        if count[finding["rule"], finding["file"]] > old[finding["rule"], finding["file"]]
    ]


def examine(memfit: str, cache: Path, bug: Bug, index: int) -> list[dict[str, Any]]:
    """Return the new findings in the copy with the bug."""
    original = cache / "original" / bug.folder
    copy = cache / "planted" / f"{index:03}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    text = (original / bug.path).read_text()
    (copy / bug.path).write_text(changed(text, bug.edits))
    return check(memfit, copy)


@dataclass(frozen=True)
class Reading:
    """Return the findings in the changed copies of some bugs, and in the unchanged repositories."""

    bugs: list[Bug]
    # The rules that name each bug.
    found: list[list[str]]
    before: dict[str, list[dict[str, Any]]]

    def serious(self) -> dict[str, dict[str, Any]]:
        """The errors and warnings on the unchanged repositories."""
        return {
            f"{folder}/{run.key(finding)}": finding
            for folder, findings in self.before.items()
            for finding in run.serious(findings)
        }


def read(memfit: str, cache: Path, mirror: Path, bugs: list[Bug]) -> Reading:
    kinds = tomllib.loads(KINDS.read_text())
    before: dict[str, list[dict[str, Any]]] = {}
    for bug in bugs:
        folder = cache / "original" / bug.folder
        export(folder, bug, mirror)
        if bug.folder not in before:
            before[bug.folder] = check(memfit, folder)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(examine, memfit, cache, bug, index) for index, bug in enumerate(bugs)]
        reports = [job.result() for job in jobs]
    found = []
    for bug, after in zip(bugs, reports, strict=True):
        fresh = new_findings(before[bug.folder], after)
        hits = [f for f in fresh if f["rule"] in kinds[bug.kind] and near(f, bug)]
        found.append(sorted({f["rule"] for f in hits}))
    return Reading(bugs, found, before)


def cell_text(text: str, number: int) -> str:
    """The code of a cell of a notebook, without its magics."""
    code = "".join(json.loads(text)["cells"][number - 1]["source"])
    return "\n".join("pass" if line[:1] in ("%", "!") else line for line in code.split("\n"))


def verify(bugs: list[Bug], cache: Path, mirror: Path) -> list[str]:
    """Applies each edit and parses the result; returns what is wrong."""
    wrong = []
    for bug in bugs:
        folder = cache / "original" / bug.folder
        export(folder, bug, mirror)
        original = (folder / bug.path).read_text()
        text = changed(original, bug.edits)
        code = text if bug.cell is None else cell_text(text, bug.cell)
        try:
            ast.parse(code)
        except SyntaxError as error:
            wrong.append(f"{bug.key}: {error}")
        for path, line in bug.places():
            there = code if path == bug.path else (folder / path).read_text()
            if not 0 < line <= len(there.split("\n")):
                wrong.append(f"{bug.key}: no line {path}:{line}")
        if text == original:
            wrong.append(f"{bug.key}: changes nothing")
    return wrong


def crowded(labels: dict[str, Any]) -> list[str]:
    """A sentence on a repository that has most of the findings of the first reading, and on the others."""
    first = {key: label for key, label in labels.items() if not label.get("later", False)}
    of_each = Counter(key.split("/", 1)[0] for key in first)
    folder, count = of_each.most_common(1)[0] if of_each else ("", 0)
    if count <= len(first) / 2:
        return []
    others = [label["true"] for key, label in first.items() if not key.startswith(f"{folder}/")]
    name = folder.replace("+", "/")
    return [
        "",
        f"{count} of the {len(first)} errors and warnings of the first reading are of one repository, {name}; "
        f"of the others, {run.percent(sum(others), len(others))} were true.",
    ]


def page(chosen: PlantedSet, readings: dict[str, Reading], rules: dict[str, str]) -> str:
    labels = tomllib.loads(chosen.labels.read_text())
    noted = tomllib.loads(chosen.readings.read_text())
    bugs = [bug for reading in readings.values() for bug in reading.bugs]
    now = {
        bug.key
        for reading in readings.values()
        for bug, by in zip(reading.bugs, reading.found, strict=True)
        if by
    }
    first, last = set(noted["first"]), set(noted.get("last", ()))
    notes = noted.get("notes")
    third = ["unread third, when it was first read"] if "unread" in readings else []
    scripts = {(bug.repository, bug.path) for bug in bugs}
    lines = [
        f"# {chosen.heading}",
        "",
        f"Made by `python scripts/corpus/planted.py --mirror FOLDER --set {chosen.name} --write FILE`: "
        f"{len(bugs)} bugs of {len({bug.kind for bug in bugs})} kinds, each in a copy of its own of one of "
        f"{len(scripts)} scripts from {len({bug.repository for bug in bugs})} repositories of papers, courses, "
        "competitions, tutorials and trainers, pinned by commit. They were chosen and planted "
        f"{chosen.blindness} ([{chosen.bugs.name}](../scripts/corpus/{chosen.bugs.name}) has the edits). A bug counts as "
        f"found where a rule that stands for its kind is reported within {NEAR} lines of it.",
        "",
    ]
    columns = ["planted bugs found", "first reading, before anything was mended", *third, "now"]
    lines += [chosen.about, "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name, reading in readings.items():
        keys = {bug.key for bug in reading.bugs}
        unread = [run.percent(len(keys & last), len(keys)) if name == "unread" else "" for _ in third]
        cells = [run.percent(len(keys & first), len(keys)), *unread, run.percent(len(keys & now), len(keys))]
        lines.append(f"| {chosen.titles[name]} | {' | '.join(cells)} |")
    if "without_rule" in noted:
        lines += ["", f"For {noted['without_rule']} of the bugs, no rule stood at the first reading."]
    lines += [
        "",
        "Each error and warning on the unchanged repositories was read, with the code around it"
        + (f", and so were {notes['read']} notes drawn at random; " if notes else "; ")
        + "the labels are in "
        f"[{chosen.labels.name}](../scripts/corpus/{chosen.labels.name}) and "
        f"[{chosen.readings.name}](../scripts/corpus/{chosen.readings.name}).",
        "",
        "| true, of those found | first reading | now |",
        "|---|---|---|",
    ]
    for severity in ("error", "warning"):
        found = [
            f"{key}"
            for reading in readings.values()
            for key, f in reading.serious().items()
            if f["severity"] == severity
        ]
        true = sum(run.label_now(labels[key])["true"] for key in found)
        lines.append(
            f"| {severity}s | {run.percent(*run.first_reading(labels, rules, severity))} | {run.percent(true, len(found))} |"
        )
    if notes:
        lines.append(f"| notes | {run.percent(notes['read'] - len(notes['false']), notes['read'])} | |")
    lines += [*crowded(labels), "", "| kind of bug | planted | first reading | now |", "|---|---|---|---|"]
    for kind in sorted({bug.kind for bug in bugs}):
        keys = {bug.key for bug in bugs if bug.kind == kind}
        lines.append(f"| {kind} | {len(keys)} | {len(keys & first)} | {len(keys & now)} |")
    lines += ["", "## Planted and not found", "", "| bug | kind | why it is one |", "|---|---|---|"]
    lines += [f"| `{bug.name}` | {bug.kind} | {bug.why} |" for bug in bugs if bug.key not in now]
    lines += ["", "## Each error and warning on the unchanged repositories", ""]
    lines += ["| finding | rule | true | why |", "|---|---|---|---|"]
    for key in sorted(key for reading in readings.values() for key in reading.serious()):
        lines.append(run.finding_row(key, run.label_now(labels[key])))
    lines += ["", "## What the first reading found, and is no longer found", ""]
    lines += ["| finding | rule | why | mended |", "|---|---|---|---|"]
    lines += run.mended_rows(labels)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--verify", action="store_true", help="apply the edits and parse the results")
    parser.add_argument("--memfit", default=shutil.which("memfit"))
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "target" / "planted")
    parser.add_argument("--mirror", type=Path, required=True, help="git directories, as owner+name")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    chosen = SETS[arguments.set]
    bugs = read_bugs(chosen)
    if arguments.verify:
        wrong = verify(bugs, arguments.cache / "verify", arguments.mirror)
        print(*wrong, f"{len(bugs)} bugs, {len(wrong)} wrong", sep="\n")
        return int(bool(wrong))
    memfit = str(Path(arguments.memfit).resolve())
    readings = {
        name: read(
            memfit,
            arguments.cache / name,
            arguments.mirror,
            [bug for bug in bugs if len(chosen.titles) == 1 or bug.is_unread == (name == "unread")],
        )
        for name in chosen.titles
    }
    labels = tomllib.loads(chosen.labels.read_text())
    bad = False
    for name, reading in readings.items():
        for bug, by in zip(reading.bugs, reading.found, strict=True):
            print("found " if by else "MISSED", bug.key, *by)
        print(f"{name}: {run.percent(sum(map(bool, reading.found)), len(reading.bugs))} found")
        for key in reading.serious():
            if "mended" in labels.get(key, {"mended": "without a label"}):
                print("without a label, or mended and back:", key)
                bad = True
    if arguments.write and not bad:
        arguments.write.write_text(page(chosen, readings, run.severities(memfit)))
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
