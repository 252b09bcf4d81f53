"""Runs `memfit check` on the sources of public packages, and compares its findings with labels that were
assigned by reading each finding.

    python scripts/corpus/run.py [--memfit COMMAND] [--cache FOLDER] [--mirror FOLDER]
        [--write docs/check-corpus.md]

There are several lists of packages: packages.txt, with which the rules were developed, and others. Each of
those was first read after the faults that the previous ones had shown were fixed. The sources are source
distributions, pinned by version and hash, fetched from pip's index, and only unpacked; the number of
Python files of each is asserted. The repositories of strangers.txt and its like are pinned by commit, and
read from git directories in the folder of `--mirror`, named `owner+name`; without that folder they are
left out. The TOML file next to each list has a label for each error and warning, `true` or `false` with a
reason. A finding without a label fails the run, and so does a label without a finding. A label with `mended`
belongs to a finding that was false at the first reading and has been fixed: it counts for the first reading,
and fails the run if it comes back. At least 95 % of the errors and 90 % of the warnings must be true.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib
from pip._internal.models.index import PyPI

HERE = Path(__file__).resolve().parent
# The comparison with other programs: made by peers.py, and a part of the page.
PEERS = HERE / "peers.md"
PACKAGE = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:(?P<hash>\w+)  # (?P<files>\d+)$", re.M
)


# The lists in the order in which they were read, by what they are called: what was seen while the rules were
# written, and what was not.
AT_HAND = "at hand"
LISTS = {
    AT_HAND: ("packages.txt", "labels.toml", "."),
    "held out": ("held-out.txt", "held-out.toml", "held-out"),
    "unread": ("unread.txt", "unread.toml", "unread"),
    "fresh": ("fresh.txt", "fresh.toml", "fresh"),
    "fresh again": ("again.txt", "again.toml", "again"),
    "of strangers": ("strangers.txt", "strangers.toml", "strangers"),
    "held out of those": ("strangers-held.txt", "strangers-held.toml", "strangers-held"),
    "fresh of those": ("strangers-fresh.txt", "strangers-fresh.toml", "strangers-fresh"),
    "last of those": ("strangers-last.txt", "strangers-last.toml", "strangers-last"),
}
REPOSITORY = re.compile(
    r"^(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)@(?P<commit>[0-9a-f]{40})  # (?P<files>\d+)$", re.M
)
# The files of a repository that are read.
TEXTS = {".py", ".ipynb", ".md"}


@dataclass(frozen=True)
class Part:
    """A list of packages, their location, and the labels of their findings."""

    packages: Path
    labels: Path
    cache: Path

    @property
    def sources(self) -> Path:
        return self.cache / "sources"

    def count(self) -> int:
        listed = self.packages.read_text()
        return len(PACKAGE.findall(listed)) or len(REPOSITORY.findall(listed))

    @property
    def are_repositories(self) -> bool:
        return bool(REPOSITORY.search(self.packages.read_text()))

    def description(self, name: str) -> str:
        """The list as the page names it."""
        return f"{self.count()} {'repositories' if self.are_repositories else 'packages'} {name}"

    def read_labels(self) -> dict[str, dict[str, Any]]:
        return tomllib.loads(self.labels.read_text())


def parts(cache: Path) -> dict[str, Part]:
    return {
        name: Part(HERE / packages, HERE / labels, cache / folder)
        for name, (packages, labels, folder) in LISTS.items()
    }


def fetched(part: Part) -> dict[str, Path]:
    """The folder of each package that was unpacked already."""
    names = (
        f"{package['name']}-{package['version']}" for package in PACKAGE.finditer(part.packages.read_text())
    )
    return {name: part.sources / name for name in names if (part.sources / name).exists()}


def index() -> str:
    """Return the package index that pip uses on this machine."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    set_by_user = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("PIP_INDEX_URL") or set_by_user or PyPI.simple_url


def download(name: str, stem: str, digest: str, archive: Path) -> None:
    """Fetches a source distribution. `pip download` would run its build to learn what it needs: foreign code,
    which takes minutes and fails where it is old.
    """
    address = f"{index().rstrip('/')}/{re.sub('[-_.]+', '-', name).lower()}/"
    with urllib.request.urlopen(address, timeout=60) as answer:
        listed = answer.read().decode()
    links = (html.unescape(link) for link in re.findall(r'href="([^"]+)"', listed))
    found = next(link for link in links if link.endswith(f"#sha256={digest}"))
    with urllib.request.urlopen(urllib.parse.urljoin(address, found), timeout=60) as answer:
        content = answer.read()
    assert hashlib.sha256(content).hexdigest() == digest, f"{stem} is not what was pinned"
    archive.write_bytes(content)


def fetch(part: Part) -> dict[str, Path]:
    """The folder of each package, unpacked."""
    cache = part.cache
    archives, sources = cache / "archives", part.sources
    sources.mkdir(parents=True, exist_ok=True)
    found = {}
    for package in PACKAGE.finditer(part.packages.read_text()):
        name, files = package["name"], int(package["files"])
        folder = sources / f"{name}-{package['version']}"
        if not folder.exists():
            archive = archives / f"{folder.name}.tar.gz"
            archives.mkdir(parents=True, exist_ok=True)
            download(name, folder.name, package["hash"], archive)
            with tarfile.open(archive) as opened:
                opened.extractall(sources, filter="data")
        count = sum(1 for _ in folder.rglob("*.py"))
        assert count == files, f"{folder.name} has {count} Python files and not {files}"
        found[folder.name] = folder
    return found


def export(part: Part, mirror: Path) -> None:
    """Write the files of each repository at its commit, unless they exist."""
    for repository in REPOSITORY.finditer(part.packages.read_text()):
        folder = part.sources / f"{repository['owner']}+{repository['name']}"
        if not folder.exists():
            place = next(
                path for path in (mirror / folder.name).rglob("HEAD") if path.parent.name != "logs"
            ).parent
            git = ["git", "--git-dir", str(place)]
            listed = subprocess.run(
                [*git, "ls-tree", "-r", "-z", "--name-only", repository["commit"]],
                capture_output=True,
                check=True,
            )
            for name in listed.stdout.decode(errors="surrogateescape").split("\0"):
                if Path(name).suffix not in TEXTS:
                    continue
                shown = subprocess.run(
                    [*git, "show", f"{repository['commit']}:{name}"], capture_output=True, check=False
                )
                # The largest files of a snapshot may be listed and absent.
                if shown.returncode == 0:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(shown.stdout)
        count = sum(path.suffix in TEXTS and path.is_file() for path in folder.rglob("*"))
        assert count == int(repository["files"]), (
            f"{folder.name} has {count} texts, not {repository['files']}"
        )


def check(memfit: str, sources: Path) -> tuple[list[dict[str, Any]], int, float]:
    """The findings, the number of files, and how long it took."""
    begin = time.perf_counter()
    done = subprocess.run(
        [memfit, "--isolated", "check", ".", "--format", "json"],
        cwd=sources,
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - begin
    # 2: a file could not be read, as some are there to show.
    assert done.returncode in (0, 1, 2), done.stderr
    report = json.loads(done.stdout)
    for finding in report["findings"]:
        finding["file"] = finding["file"].removeprefix("./")
    return report["findings"], report["files"], took


def severities(memfit: str) -> dict[str, str]:
    listed = subprocess.run([memfit, "rule", "--format", "json"], capture_output=True, text=True, check=True)
    return {rule["name"]: rule["severity"] for rule in json.loads(listed.stdout)["rules"]}


def key(finding: dict[str, Any]) -> str:
    # A line of a notebook is one of a cell.
    cell = "" if finding.get("cell") is None else f"#{finding['cell']}"
    return f"{finding['file']}{cell}:{finding['line']}:{finding['rule']}"


def serious(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["severity"] != "note"]


def share(findings: list[dict[str, Any]], labels: dict[str, Any], severity: str) -> tuple[int, int]:
    """Return the numbers of true findings and of all."""
    these = [labels[key(found)]["true"] for found in findings if found["severity"] == severity]
    return sum(these), len(these)


def first_reading(labels: dict[str, Any], rules: dict[str, str], severity: str) -> tuple[int, int]:
    """Return the same numbers for the first reading, before anything was fixed."""
    these = [
        (label["true"], label.get("count", 1))
        for name, label in labels.items()
        if rules[name.rsplit(":", 1)[1]] == severity and not label.get("later", False)
    ]
    return sum(count for true, count in these if true), sum(count for _, count in these)


def disagreements(findings: list[dict[str, Any]], labels: dict[str, Any]) -> list[str]:
    found = {key(finding) for finding in serious(findings)}
    mended = {name for name, label in labels.items() if "mended" in label}
    return [
        *(f"without a label: {name}" for name in sorted(found - set(labels))),
        *(f"mended, and back: {name}" for name in sorted(found & mended)),
        *(f"labelled, and not found: {name}" for name in sorted(set(labels) - mended - found)),
    ]


def percent(true: int, count: int) -> str:
    return f"{true} of {count} ({100 * true / count:.0f} %)" if count else "none"


Results = dict[str, tuple[list[dict[str, Any]], int]]


def page(results: Results, corpus: dict[str, Part], rules: dict[str, str]) -> str:
    labels = {name: part.read_labels() for name, part in corpus.items()}
    unseen = [name for name in corpus if name != AT_HAND]
    files = ", ".join(
        f"[{part.labels.name}](../scripts/corpus/{part.labels.name})" for part in corpus.values()
    )
    lines = [
        "# `memfit check` on other people's code",
        "",
        "Made by `python scripts/corpus/run.py --mirror FOLDER --write docs/check-corpus.md`: source distributions, pinned "
        "by version and hash, and repositories of papers, courses, tutorials and trainers, pinned by commit (they are named "
        "in strangers*.txt). Each error and warning was read, with the code around it; the labels and their reasons are in "
        f"{files}.",
        "",
        f"The rules were developed with {corpus[AT_HAND].count()} packages ({results[AT_HAND][1]} files). "
        "Then the findings in other lists were read for the first time, one list after another: "
        + ", ".join(f"{corpus[name].description(name)} ({results[name][1]} files)" for name in unseen)
        + ". Faults that these showed were fixed, too, so only a first reading shows how the rules do on unseen code.",
        "",
        "| true findings | errors | warnings |",
        "|---|---|---|",
    ]
    for name in unseen:
        row = [percent(*first_reading(labels[name], rules, severity)) for severity in ("error", "warning")]
        lines.append(f"| {corpus[name].description(name)}, first reading | {row[0]} | {row[1]} |")
        row = [percent(*share(results[name][0], labels[name], severity)) for severity in ("error", "warning")]
        lines.append(f"| the same, now | {row[0]} | {row[1]} |")
    row = [
        percent(*share(results[AT_HAND][0], labels[AT_HAND], severity)) for severity in ("error", "warning")
    ]
    lines.append(f"| {corpus[AT_HAND].description(AT_HAND)} | {row[0]} | {row[1]} |")
    order = [*unseen, AT_HAND]
    lines += ["", f"| rule | severity | {' | '.join(order)} |", "|---|---|" + "---|" * len(order)]
    counts = {
        name: Counter((finding["rule"], finding["severity"]) for finding in results[name][0])
        for name in order
    }
    for rule, severity in sorted(set().union(*counts.values())):
        cells = " | ".join(str(counts[name][rule, severity]) for name in order)
        lines.append(f"| {rule} | {severity} | {cells} |")
    for name in order:
        lines += ["", f"## {name.capitalize()}: each error and warning", ""]
        lines += ["| finding | rule | true | why |", "|---|---|---|---|"]
        for finding in serious(results[name][0]):
            lines.append(finding_row(key(finding), labels[name][key(finding)]))
    lines += ["", "## False findings of a first reading that were fixed", ""]
    lines += ["| finding | rule | why | fix |", "|---|---|---|---|"]
    for name in unseen:
        lines += mended_rows(labels[name])
    return "\n".join(lines) + "\n"


def label_now(label: dict[str, Any]) -> dict[str, Any]:
    """Return a label as it is now: `now` says why the finding is true, where only its advice was wrong."""
    return {**label, "true": True, "why": label["now"]} if "now" in label else label


def finding_row(key: str, label: dict[str, Any]) -> str:
    """A finding's row in the table of each error and warning."""
    place, rule = key.rsplit(":", 1)
    return f"| `{place}` | {rule} | {'yes' if label['true'] else 'no'} | {label['why']} |"


def mended_rows(labels: dict[str, dict[str, Any]]) -> list[str]:
    """Rows of the findings that a mended rule no longer reports."""
    rows = []
    for key, label in labels.items():
        if "mended" in label:
            place, rule = key.rsplit(":", 1)
            rows.append(f"| `{place}` | {rule} | {label['why']} | {label['mended']} |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memfit", default=shutil.which("memfit"))
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "target" / "corpus")
    parser.add_argument("--mirror", type=Path, help="git directories of the repositories, as owner+name")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    memfit = str(Path(arguments.memfit).resolve())
    rules = severities(memfit)
    corpus = parts(arguments.cache)
    if arguments.mirror is None:
        if arguments.write:
            parser.error("--write takes --mirror: the page is of all lists")
        corpus = {name: part for name, part in corpus.items() if not part.are_repositories}
    results: Results = {}
    bad = False
    for name, part in corpus.items():
        if part.are_repositories:
            export(part, arguments.mirror)
        else:
            fetch(part)
        findings, files, took = check(memfit, part.sources)
        results[name] = findings, files
        print(f"{name}: {files} files in {took:.2f} s, {len(findings)} findings")
        labels = part.read_labels()
        wrong = disagreements(findings, labels)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        bad |= bool(wrong)
        for severity, least in (("error", 0.95), ("warning", 0.90)):
            labelled = [finding for finding in findings if key(finding) in labels]
            true, count = share(labelled, labels, severity)
            print(f"{severity}s: {percent(true, count)} true")
            bad |= count > 0 and true / count < least
        if name != AT_HAND:
            read = {severity: first_reading(labels, rules, severity) for severity in ("error", "warning")}
            print(f"first reading: errors {percent(*read['error'])}, warnings {percent(*read['warning'])}")
    if arguments.write and not bad:
        text = page(results, corpus, rules)
        if PEERS.is_file():
            text += "\n" + PEERS.read_text()
        arguments.write.write_text(text)
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
