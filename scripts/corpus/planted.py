"""Builds the scripts with planted bugs of planted.toml, and counts how many of the bugs `memfit check` names.

    python scripts/corpus/planted.py --mirror FOLDER [--memfit COMMAND] [--cache FOLDER] [--part read|unread]

Each bug lies in a copy of its own of a stranger's repository, which is read from a git directory in the
folder of `--mirror`, as run.py reads them. A bug counts as found where a rule that stands for its kind is reported
within a few lines of it, and was not reported there before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run  # noqa: E402

PLANTED = HERE / "planted.toml"
# How far from the bug a finding may lie: a statement of several lines is reported at its first or last one.
NEAR = 3


@dataclass(frozen=True)
class Bug:
    """A planted bug: the changed copy of a script, and where a careful reader would name it."""

    repository: str
    commit: str
    path: str
    line: int
    also: tuple[str, ...]
    kind: str
    why: str
    edits: tuple[dict[str, Any], ...]

    @property
    def folder(self) -> str:
        return self.repository.replace("/", "+")

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.path}:{self.line}"

    @property
    def is_unread(self) -> bool:
        """A third of the repositories, by a hash of the name: their results are read last."""
        return hashlib.sha256(self.repository.encode()).digest()[0] % 3 == 0

    def places(self) -> list[tuple[str, int]]:
        others = (place.rsplit(":", 1) for place in self.also)
        return [(self.path, self.line), *((path, int(line)) for path, line in others)]


def read_bugs() -> list[Bug]:
    listed = tomllib.loads(PLANTED.read_text())["planted"]
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
        if Path(name).suffix not in run.TEXTS:
            continue
        shown = subprocess.run([*git, "show", f"{bug.commit}:{name}"], capture_output=True, check=False)
        if shown.returncode == 0:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(shown.stdout)


def check(memfit: str, folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [memfit, "--isolated", "check", ".", "--format", "json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1, 2), done.stderr
    findings = json.loads(done.stdout)["findings"]
    return [{**finding, "file": finding["file"].removeprefix("./")} for finding in findings]


def near(finding: dict[str, Any], places: list[tuple[str, int]]) -> bool:
    return any(finding["file"] == path and abs(finding["line"] - line) <= NEAR for path, line in places)


def new_findings(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings of the changed copy, without as many of each rule and file as there were before."""
    old = Counter((finding["rule"], finding["file"]) for finding in before)
    count = Counter((finding["rule"], finding["file"]) for finding in after)
    return [finding for finding in after if count[finding["rule"], finding["file"]] > old[finding["rule"], finding["file"]]]


def examine(memfit: str, cache: Path, mirror: Path, bug: Bug, index: int) -> list[dict[str, Any]]:
    """What is newly reported in the copy with the bug."""
    original = cache / "original" / bug.folder
    copy = cache / "planted" / f"{index:03}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    text = (original / bug.path).read_text()
    (copy / bug.path).write_text(changed(text, bug.edits))
    return check(memfit, copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memfit", default=shutil.which("memfit"))
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "target" / "planted")
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--part", choices=("read", "unread"), default="read")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    memfit = str(Path(arguments.memfit).resolve())
    kinds = tomllib.loads(PLANTED.read_text())["kinds"]
    bugs = [bug for bug in read_bugs() if bug.is_unread == (arguments.part == "unread")]
    before: dict[str, list[dict[str, Any]]] = {}
    for bug in bugs:
        folder = arguments.cache / "original" / bug.folder
        export(folder, bug, arguments.mirror)
        if bug.folder not in before:
            before[bug.folder] = check(memfit, folder)
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(examine, memfit, arguments.cache, arguments.mirror, bug, index)
            for index, bug in enumerate(bugs)
        ]
        reports = [job.result() for job in jobs]
    found = 0
    rows = []
    for bug, after in zip(bugs, reports, strict=True):
        fresh = new_findings(before[bug.folder], after)
        hits = [f for f in fresh if f["rule"] in kinds[bug.kind] and near(f, bug.places())]
        others = [f"{f['rule']}:{f['line']}" for f in fresh if f not in hits]
        found += bool(hits)
        rows.append({"bug": bug.name, "kind": bug.kind, "found": sorted({f["rule"] for f in hits}), "others": others})
        print("found " if hits else "MISSED", bug.name, bug.kind, sorted({f["rule"] for f in hits}), others)
    print(f"{arguments.part}: {run.percent(found, len(bugs))} found")
    if arguments.output:
        arguments.output.write_text(json.dumps({"rows": rows, "before": before}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
