"""Runs torch-preflight, TorchFix and `memfit check` over the corpus of run.py, package by package, and
compares their times and findings.

    python scripts/corpus/peers.py [--memfit COMMAND] [--cache FOLDER] [PACKAGE…]

The three programs run one after another on each package, so that the machine's load is similar. Results are
kept in the cache: the two peers need over an hour for what takes memfit a second, and an interrupted call
resumes. `--again` starts from the beginning, `--measured` only writes the page. CPU time is compared, since
it depends least on other load. The peers are installed into their own environment in the cache, as pinned in
peers.txt. peers.toml maps each of their rules to memfit's rule about the same thing, and says why memfit
reports nothing where they do. The page is peers.md, which run.py copies into docs/check-corpus.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomllib
from run import fetch, fetched, parts

HERE = Path(__file__).resolve().parent
TOOLS = ("memfit", "torch-preflight", "TorchFix")
TORCHFIX = re.compile(r"^(?P<file>[^:\n]+\.py):(?P<line>\d+):\d+: (?P<rule>TOR\d+) (?P<message>.*)$", re.M)
# A finding of theirs and one of ours are about the same if they are this near to each other.
NEAR = 3


def install(cache: Path) -> Path:
    """Return the folder of the peers' commands."""
    folder = cache / "peers"
    if not (folder / "bin/torchfix").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        command = [folder / "bin/pip", "install", "--quiet", "--no-deps", "-r", HERE / "peers.txt"]
        subprocess.run(command, check=True)
    return folder / "bin"


def timed(command: list[str], folder: Path) -> tuple[str, dict[str, float]]:
    """Return a command's output, wall time and CPU time."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, {"wall": time.perf_counter() - begin, "cpu": cpu}


def measure(package: Path, peers: Path, memfit: str) -> dict[str, Any]:
    """Return the findings of the three tools in a package, and their cost."""
    name, folder = package.name, package.parent
    answer: dict[str, Any] = {"files": sum(1 for _ in package.rglob("*.py")), "memfit": ours(package, memfit)}
    text, spent = timed([str(peers / "torch-preflight"), "check", name, "-f", "json", "--no-color"], folder)
    found = json.loads(text)["diagnostics"]
    answer["torch-preflight"] = spent | {
        "findings": [[one["path"], one["line"], one["code"], one["severity"]] for one in found]
    }
    text, spent = timed([str(peers / "torchfix"), "--select", "ALL", name], folder)
    answer["TorchFix"] = spent | {
        "findings": [[one["file"], int(one["line"]), one["rule"]] for one in TORCHFIX.finditer(text)]
    }
    return answer


def ours(package: Path, memfit: str) -> dict[str, Any]:
    """The same of memfit."""
    command = [memfit, "--isolated", "check", package.name, "--format", "json"]
    text, spent = timed(command, package.parent)
    found = json.loads(text)["findings"]
    return spent | {"findings": [[one["file"], one["line"], one["rule"]] for one in found]}


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def times(results: dict[str, dict[str, Any]], listed: int) -> list[str]:
    """The table of the time of each tool, for the packages that were checked out of `listed`."""
    total = {
        tool: {of: sum(one[tool][of] for one in results.values()) for of in ("cpu", "wall")} for tool in TOOLS
    }
    files = sum(one["files"] for one in results.values())
    lines = [
        f"{len(results)} of {listed} packages, the small ones first, {files} files; on {os.cpu_count()} cores, package after package.",
        "",
        "| | processor time | of memfit | wall time | of memfit | least of a package |",
        "|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        ratio = {of: total[tool][of] / total["memfit"][of] for of in ("cpu", "wall")}
        least = min(one[tool]["cpu"] / one["memfit"]["cpu"] for one in results.values())
        lines.append(
            f"| {tool} | {seconds(total[tool]['cpu'])} | {ratio['cpu']:.0f}x | {seconds(total[tool]['wall'])} "
            f"| {ratio['wall']:.0f}x | {least:.0f}x |"
        )
    return lines


def compared(results: dict[str, dict[str, Any]], said: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The table of the findings of other tools, and their rules that have no entry in peers.toml."""
    ours: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for one in results.values():
        for file, line, rule in one["memfit"]["findings"]:
            ours[file].append((line, rule))

    def is_ours(file: str, line: int, rules: Iterable[str]) -> bool:
        return any(rule in rules and abs(line - there) <= NEAR for there, rule in ours[file])

    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    missed: list[tuple[str, int, str]] = []
    for one in results.values():
        for tool in TOOLS[1:]:
            for file, line, rule, *_ in one[tool]["findings"]:
                count = counts[tool, rule]
                count[0] += 1
                if is_ours(file, line, said.get(rule, {}).get("ours", [])):
                    count[1] += 1
                elif said.get(rule, {}).get("each"):
                    missed.append((file, line, rule))
    lines = [
        "| their rule | findings | of these ours | our rule | what memfit says nothing about, and why |",
        "|---|---|---|---|---|",
    ]
    unsaid = [rule for _, rule in counts if rule not in said]
    for (tool, rule), (found, both) in sorted(counts.items()):
        entry = said.get(rule, {})
        names = ", ".join(entry.get("ours", [])) or "none"
        lines.append(
            f"| {tool} {rule}: {entry.get('what', '')} | {found} | {both} | {names} | {entry.get('why', '')} |"
        )
    if missed:
        each = said.get("each", {})
        lines += [
            "",
            "One by one, where both have a rule:",
            "",
            "| finding of theirs | rule | why it is none of ours |",
            "|---|---|---|",
        ]
        for file, line, rule in missed:
            key = f"{file}:{line}:{rule}"
            lines.append(f"| `{file}:{line}` | {rule} | {each.get(key, '')} |")
            if key not in each:
                unsaid.append(key)
    return lines, unsaid


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", help="the beginnings of names; without them, all")
    parser.add_argument("--memfit", default=shutil.which("memfit"))
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "target" / "corpus")
    parser.add_argument("--again", action="store_true", help="measure everything again")
    parser.add_argument("--fetched", action="store_true", help="fetch nothing: only what is there already")
    parser.add_argument("--measured", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    memfit = str(Path(arguments.memfit).resolve())
    peers = install(arguments.cache)
    packages: dict[str, Path] = {}
    listed = sum(part.count() for part in parts(arguments.cache).values())
    for part in parts(arguments.cache).values():
        packages |= fetched(part) if arguments.fetched else fetch(part)
    kept = {name: arguments.cache / f"peers-{name}.json" for name in packages}
    if arguments.again:
        for file in kept.values():
            file.unlink(missing_ok=True)
    results: dict[str, dict[str, Any]] = {}
    # The small ones first: who is interrupted has many.
    for name, package in sorted(packages.items(), key=lambda item: sum(1 for _ in item[1].rglob("*.py"))):
        if arguments.packages and not name.startswith(tuple(arguments.packages)):
            continue
        if not kept[name].exists():
            if arguments.measured:
                continue
            fresh = kept[name].with_suffix(".new")
            fresh.write_text(json.dumps(measure(package, peers, memfit)))
            fresh.rename(kept[name])
        results[name] = json.loads(kept[name].read_text())
        # The times belong to that run; the findings are those of today.
        results[name]["memfit"]["findings"] = ours(package, memfit)["findings"]
        print(name, *(f"{tool} {seconds(results[name][tool]['cpu'])}" for tool in TOOLS), flush=True)
    said = tomllib.loads((HERE / "peers.toml").read_text()) if (HERE / "peers.toml").exists() else {}
    table, unsaid = compared(results, said)
    lines = [
        "# Beside other linters",
        "",
        "Made by `python scripts/corpus/peers.py`: torch-preflight 0.5.0 and TorchFix 0.7.0 (with all of its rules), each in "
        "an environment of its own, and `memfit check`, one after the other on each package.",
        "",
        *times(results, listed),
        "",
        *table,
    ]
    (HERE / "peers.md").write_text("\n".join(lines).replace("# Beside", "## Beside", 1) + "\n")
    print(*(f"nothing is said of {name}" for name in unsaid), sep="\n")
    return int(bool(unsaid))


if __name__ == "__main__":
    raise SystemExit(main())
