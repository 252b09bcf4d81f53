"""Runs `memfit check` over the sources of other people's packages, and holds what it finds to the labels that were
given by reading each finding.

    python scripts/corpus/run.py [--memfit COMMAND] [--cache FOLDER] [--write docs/check-corpus.md]

The sources are fetched by pip as source distributions, pinned by version and hash in packages.txt, and only unpacked;
the number of Python files of each is asserted. labels.toml has `true` or `false` with a reason for each error and
warning; a finding without a label fails the run, and so does a label without a finding. At least 95 % of the errors and
90 % of the warnings must be true.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
PACKAGE = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:(?P<hash>\w+)  # (?P<files>\d+)$", re.M
)


def fetch(cache: Path) -> dict[str, Path]:
    """The folder of each package, unpacked."""
    archives, sources = cache / "archives", cache / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    found = {}
    for package in PACKAGE.finditer((HERE / "packages.txt").read_text()):
        name, files = package["name"], int(package["files"])
        folder = sources / f"{name}-{package['version']}"
        if not folder.exists():
            requirement = cache / f"{name}.txt"
            requirement.write_text(f"{name}=={package['version']} --hash=sha256:{package['hash']}\n")
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
            ]
            command += [
                "--require-hashes",
                "--ignore-requires-python",
                "-d",
                str(archives),
                "-r",
                str(requirement),
            ]
            subprocess.run(command, check=True)
            archive = next(path for path in archives.glob("*.tar.gz") if path.name.startswith(folder.name))
            with tarfile.open(archive) as opened:
                opened.extractall(sources, filter="data")
        count = sum(1 for _ in folder.rglob("*.py"))
        assert count == files, f"{folder.name} has {count} Python files and not {files}"
        found[folder.name] = folder
    return found


def check(memfit: str, sources: Path) -> tuple[list[dict], int, float]:
    begin = time.perf_counter()
    done = subprocess.run(
        [memfit, "--isolated", "check", ".", "--format", "json"],
        cwd=sources,
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - begin
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    for finding in report["findings"]:
        finding["file"] = finding["file"].removeprefix("./")
    return report["findings"], report["files"], took


def key(finding: dict) -> str:
    return f"{finding['file']}:{finding['line']}:{finding['rule']}"


def page(findings: list[dict], labels: dict, files: int) -> str:
    lines = [
        "# `memfit check` on other people's code",
        "",
        "Made by `python scripts/corpus/run.py --write docs/check-corpus.md`: the source distributions of "
        f"{len(PACKAGE.findall((HERE / 'packages.txt').read_text()))} packages, {files} files, pinned by version and hash. "
        "Each error and warning was read, with the code around it; the labels and their reasons are in "
        "[labels.toml](../scripts/corpus/labels.toml). The rules were mended where this reading showed them wrong, so the "
        "figures say how the rules do on code that they have seen.",
        "",
        "| severity | findings | true |",
        "|---|---|---|",
    ]
    for severity in ("error", "warning"):
        these = [finding for finding in findings if finding["severity"] == severity]
        right = sum(labels[key(finding)]["true"] for finding in these)
        lines.append(f"| {severity} | {len(these)} | {right} |")
    lines += ["", "| rule | severity | findings |", "|---|---|---|"]
    counts = Counter((finding["rule"], finding["severity"]) for finding in findings)
    lines += [f"| {rule} | {severity} | {count} |" for (rule, severity), count in sorted(counts.items())]
    lines += ["", "## Each error and warning", "", "| finding | rule | true | why |", "|---|---|---|---|"]
    for finding in findings:
        if finding["severity"] != "note":
            label = labels[key(finding)]
            place = f"{finding['file']}:{finding['line']}"
            lines.append(
                f"| `{place}` | {finding['rule']} | {'yes' if label['true'] else 'no'} | {label['why']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memfit", default=shutil.which("memfit"))
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "target" / "corpus")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    fetch(arguments.cache)
    memfit = str(Path(arguments.memfit).resolve())
    findings, files, took = check(memfit, arguments.cache / "sources")
    labels = tomllib.loads((HERE / "labels.toml").read_text())
    serious = [finding for finding in findings if finding["severity"] != "note"]
    unlabelled = [key(finding) for finding in serious if key(finding) not in labels]
    gone = sorted(set(labels) - {key(finding) for finding in serious})
    print(f"{files} files in {took:.2f} s: {len(findings)} findings")
    for what, names in (("without a label", unlabelled), ("labelled, and not found", gone)):
        print(*(f"{what}: {name}" for name in names), sep="\n", end="\n" if names else "")
    bad = bool(unlabelled or gone)
    for severity, least in (("error", 0.95), ("warning", 0.90)):
        these = [
            labels[key(finding)]["true"]
            for finding in serious
            if finding["severity"] == severity and key(finding) in labels
        ]
        if these:
            share = sum(these) / len(these)
            print(f"{severity}s: {sum(these)} of {len(these)} true")
            bad |= share < least
    if arguments.write and not unlabelled:
        arguments.write.write_text(page(findings, labels, files))
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
