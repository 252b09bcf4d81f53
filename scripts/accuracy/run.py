"""Run the published cases on virtual GPUs, and write measurements/accuracy.md: `make accuracy`.

    python scripts/accuracy/run.py [--environment 2.6=PYTHON]… [--mirror FOLDER] [--only WORDS]… [--again]
    python scripts/accuracy/run.py --page

A case runs if it has no result for the commit that is checked out. Each result is written at once, so the
command can be stopped and resumed. A source names the release of torch, and the interpreter with the nearest
release runs it; some sources name an interpreter by what it has installed. FOLDER contains
`owner+name/repo` (a git directory) or `owner+name` (a working tree) of each repository whose own code runs.
Cases whose repository or interpreter is missing are named and skipped. A source with a commit runs in its
checkout, even if the training loop is from this folder. `--page` only writes the page, from accuracy.json and
from the results of the other scripts that the page names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import figures
import page
from measured import MARK, PREFIX, parse

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "strangers"), str(HERE.parent / "measurements")]

import index  # noqa: E402
from mirror import checked_out  # noqa: E402

TARGET = ROOT / "measurements" / "accuracy.md"
# Scripts that measure for themselves, and can follow each other in one process.
MEASURING = ("hub_peak.py", "network_loop.py")
REPORTED = ("allocated", "reserved", "device", "device_upper")


def code_of() -> str:
    """Return the last commit that changed the code which the page measures."""
    paths = next(each.code for each in index.pages() if each.path == "measurements/accuracy.md")
    command = ["git", "log", "-1", "--format=%h", "--", *paths, *index.NOT_MEASURED]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def nearest(wanted: str, pythons: dict[str, str]) -> str:
    """Return the release nearest to the one wanted; the newest where none is stated."""
    versions = sorted(pythons, key=figures.release)
    if not wanted:
        return versions[-1]
    major, minor = figures.release(wanted)
    return min(
        versions,
        key=lambda v: abs((figures.release(v)[0] - major) * 100 + figures.release(v)[1] - minor),
    )


def memfit() -> str:
    beside = Path(sys.executable).with_name("memfit")
    found = os.environ.get("MEMFIT_COMMAND") or (str(beside) if beside.is_file() else shutil.which("memfit"))
    if not found:
        sys.exit("memfit is not installed here")
    return found


def words_of(case: dict[str, Any]) -> list[str]:
    """Return a case's arguments: words of a text, or a list, whose items may have spaces."""
    given: str | list[str] = case.get("arguments", "")
    return given.split() if isinstance(given, str) else given


def command_of(source: dict[str, Any], case: dict[str, Any], python: str, answer: Path) -> list[str]:
    """Return the command line of a case."""
    card, ranks = case.get("card", source["card"]), case.get("ranks", 1)
    # One process runs as the first rank of a `world`, with eight GPUs in each machine.
    world, gpus = case.get("world"), 8 if "world" in case else ranks
    words = [memfit(), "run", "--gpu", card + (f":{gpus}" if gpus > 1 else "")]
    words += ["--world-size", str(world)] if world else []
    words += ["--steps", str(case.get("steps", 0)), "--timeout", "20m", "--no-prove", "--show-output"]
    words += ["--json", str(answer), "--", python]
    if ranks > 1:
        words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if case.get("code", source["code"]) != "authors":
        return [*words, str(HERE / case["script"]), *words_of(case)]
    words.append(str(HERE / "authors.py"))
    words += ["--on-device"] if case.get("on_device") else []
    for name in source.get("without", []):
        words += ["--without", name]
    words += ["--before", source["before"]] if "before" in source else []
    for expression in case.get("call", []):
        words += ["--call", expression]
    return [*words, case["script"], *words_of(case)]


def fields(answer: Path) -> dict[str, Any]:
    """Return what the figures need of memfit's answer."""
    if not answer.is_file() or not answer.read_text().strip():
        return {}
    document = json.loads(answer.read_text())
    found: dict[str, Any] = {"verdict": document["verdict"]}
    if document.get("problem"):
        found["problem"] = document["problem"]["kind"]
    if document["verdict"] in ("fits", "oom"):
        found["fits"] = 1 if document["verdict"] == "fits" else 0
    found |= {name: document["peak"][name] for name in REPORTED if document["peak"].get(name) is not None}
    if "device" in found:
        found["device"] = [found["reserved"], found["device"], found["device_upper"]]
    time = document.get("time") or {}
    if time.get("step_ms_estimate"):
        found["step_ms"] = [time["step_ms_low"], time["step_ms_estimate"], time["step_ms_high"]]
    return found


def run_case(
    source: dict[str, Any], case: dict[str, Any], version: str, python: str, tree: Path
) -> dict[str, Any]:
    """Run one case; return what its figures need."""
    env = {**os.environ, **source.get("environment", {}), **case.get("environment", {})}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = command_of(source, case, python, answer)
        done = subprocess.run(
            command, cwd=tree / case.get("folder", ""), env=env, capture_output=True, text=True, check=False
        )
        output = done.stderr + "\n" + done.stdout
        report = fields(answer)
    try:
        measured = parse(output)
    except ValueError:
        measured = {}
    read = figures.read_output(case, output, measured)
    problem = "" if read or report.get("fits") is not None else f"status {done.returncode}"
    if problem:
        print(output[-3000:], file=sys.stderr)
    return {"torch": version, "read": read, "report": report, "problem": problem}


def prints_all(source: dict[str, Any], case: dict[str, Any]) -> bool:
    """Return `True` if a case can share its process: all its figures are what its script prints."""
    return (
        case["script"] in MEASURING
        and case.get("ranks", 1) == 1
        and not source.get("environment")
        and not any(row["read"].startswith("report:") for row in figures.rows_of(case))
    )


def run_together(
    cases: list[tuple[dict[str, Any], dict[str, Any], Path]], card: str, version: str, python: str
) -> dict[str, dict[str, Any]]:
    """Run cases on one card in one process; return their results by their keys."""
    wanted = [
        {
            "key": figures.key_of(source, case),
            "script": str(HERE / case["script"]),
            "arguments": words_of(case),
            "folder": str(tree),
        }
        for source, case, tree in cases
    ]
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "cases.json"
        given.write_text(json.dumps(wanted))
        command = [memfit(), "run", "--gpu", card, "--steps", "0", "--timeout", "30m", "--no-prove"]
        command += ["--show-output", "--", python, str(HERE / "together.py"), str(given)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    parts = {
        part.split("\n", 1)[0].strip(): part
        for part in re.split(rf"^{MARK}", done.stderr + "\n" + done.stdout, flags=re.M)[1:]
    }
    print(done.stderr[-2000:], file=sys.stderr)
    found = {}
    for source, case, _ in cases:
        key = figures.key_of(source, case)
        output = parts.get(key, "")
        read = figures.read_output(case, output, parse(output) if PREFIX in output else {})
        if read:
            found[key] = {"torch": version, "read": read, "report": {}, "problem": ""}
        else:
            print(f"{key} failed, and is left out:\n{output[-2000:]}", file=sys.stderr)
    return found


def keep(key: str, code: str, result: dict[str, Any]) -> dict[str, Any]:
    """Write a case's result, and return all of them: another run may have added to the file."""
    found = figures.results()
    found[key] = {"code": code, **result}
    print(key, result["problem"] or f"{len(result['read'])} figures", flush=True)
    figures.RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return found


def torch_of(python: str) -> str:
    show = "import importlib.metadata as m; print(m.version('torch'))"
    return subprocess.check_output([python, "-c", show], text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", action="append", default=[], metavar="RELEASE=PYTHON")
    parser.add_argument("--mirror", type=Path, default=ROOT / "target/accuracy/mirror")
    parser.add_argument("--work", type=Path, default=ROOT / "target/accuracy/checkouts")
    parser.add_argument("--only", action="append", help="only cases whose source or name holds this")
    parser.add_argument("--again", action="store_true", help="also those that have a result for this code")
    parser.add_argument(
        "--together", action="store_true", help="one process for cases of a card that only print"
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    if args.page:
        TARGET.write_text(page.text(page.all_figures()))
        return
    found = figures.results()
    code = code_of()
    # Cases run in other folders.
    given = {name: os.path.abspath(path) for name, path in (pair.split("=", 1) for pair in args.environment)}
    pythons = {torch_of(path): path for name, path in given.items() if name[0].isdigit()}
    pythons = pythons or {torch_of(sys.executable): sys.executable}
    left = []
    groups: dict[tuple[str, str, str], list[tuple[dict[str, Any], dict[str, Any], Path]]] = {}
    for source in figures.sources():
        for case in source["run"]:
            key = figures.key_of(source, case)
            known = found.get(key)
            if (args.only and not any(part in key for part in args.only)) or (
                known and known["code"] == code and not args.again
            ):
                continue
            tree: Path | None = ROOT
            if "commit" in source:
                args.work.mkdir(parents=True, exist_ok=True)
                tree = checked_out(args.mirror, source, args.work)
            name = source.get("interpreter")
            if tree is None or (name and name not in given):
                left.append(key)
                continue
            version = torch_of(given[name]) if name else nearest(source["torch"], pythons)
            python = given[name] if name else pythons[version]
            if args.together and prints_all(source, case):
                group = (case.get("card", source["card"]), version, python)
                groups.setdefault(group, []).append((source, case, tree))
                continue
            result = run_case(source, case, version, python, tree)
            # The machine was too slow: that says nothing of the case.
            if result["report"].get("problem") == "timeout":
                print(key, "stopped at the time limit", flush=True)
                continue
            found = keep(key, code, result)
    for (card, version, python), cases in groups.items():
        for key, result in run_together(cases, card, version, python).items():
            keep(key, code, result)
    for key in left:
        print(f"not run, its repository or interpreter is not here: {key}", file=sys.stderr)
    TARGET.write_text(page.text(page.all_figures()))


if __name__ == "__main__":
    main()
