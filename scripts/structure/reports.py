"""Compare the reports of two builds of memfit, script by script.

A change of structure must not change an answer. This runs every script of `workloads/` and `examples/` on two
virtual cards, once with each build, and lists every difference between the JSON reports except times of this
machine and texts:

    python scripts/structure/reports.py collect BEFORE --memfit PATH   # `PATH` is a built `memfit` command
    python scripts/structure/reports.py collect AFTER --memfit PATH
    python scripts/structure/reports.py compare BEFORE AFTER [--texts]

`collect` goes on where it stopped, and skips a script whose libraries are not installed (it says which).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CARDS = ("t4", "a100-80gb")
RUN_TIMEOUT_S = 600
# Relative difference of estimated times that counts as none.
TIME_TOLERANCE = 1e-3

# Sizes that keep a run short; a script that is not named here runs with its own defaults.
ARGUMENTS = {
    "workloads/checkpointed.py": "--checkpoint",
    "workloads/detection.py": "--image-size 128",
    "workloads/graphed.py": "--width 256",
    "workloads/llama.py": "--layers 4 --vocabulary 32000 --bf16 --lora 4",
    "workloads/lstm.py": "--packed",
    "workloads/resnet.py": "--precision fp16 --benchmark",
    "workloads/bert.py": "--padding --layers 4",
    "workloads/gpt2.py": "--bf16 --gradient-checkpointing",
    "workloads/vit.py": "--optimizer fused",
    "workloads/evaluate.py": "--no-grad",
    "workloads/libraries/generate.py": "--new-tokens 8",
}
# No training scripts: one is a module that others import, one runs until it is stopped.
LEFT_OUT = {"workloads/libraries/arithmetic.py", "workloads/stalled.py"}
# Scripts that a launcher starts, one process for each card.
LAUNCHED = {"workloads/distributed.py": 2}
# The questions for `memfit plan`, whose search takes many runs.
PLANNED = (
    ("examples/classifier/train.py", "rtx-4060"),
    ("workloads/gpt2.py", "rtx-3060"),
    ("workloads/unet.py", "rtx-4060"),
)
# Keys whose values depend on this machine and not on the script.
VOLATILE = {"wall_s", "host", "recording", "python", "run_dir", "loading", "wall", "evaluations"}
# Keys whose values are sentences for people.
TEXTS = {
    "notes",
    "how",
    "why",
    "text",
    "message",
    "note",
    "evidence",
    "sentence",
    "remark",
    "call",
    "summary",
    "next",
}


@dataclass(frozen=True)
class Case:
    """One question to memfit; `name` is the file that keeps the answer."""

    name: str
    arguments: tuple[str, ...]
    script: Path | None = None


def scripts() -> list[Path]:
    """All scripts that are run, relative to the root."""
    found = [
        *ROOT.glob("workloads/*.py"),
        *ROOT.glob("workloads/libraries/*.py"),
        *ROOT.glob("examples/*/*.py"),
    ]
    relative = sorted(path.relative_to(ROOT) for path in found)
    return [path for path in relative if path.as_posix() not in LEFT_OUT]


def cases(python: str) -> list[Case]:
    """Every question, in a fixed order."""
    asked = []
    for script in scripts():
        path = script.as_posix()
        options = ARGUMENTS.get(path, "").split()
        count = LAUNCHED.get(path, 1)
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
        )
        command = [python, *launcher, path, *options]
        for card in CARDS:
            gpu = f"{card}:{count}" if count > 1 else card
            name = f"{path.removesuffix('.py').replace('/', '.')}@{card}"
            asked.append(Case(name, ("run", "--gpu", gpu, "--format", "json", "--", *command), script))
    command = [python, "-m", "tagger"]
    asked += [
        Case(f"workloads.tagger@{card}", ("run", "--gpu", card, "--format", "json", "--", *command))
        for card in CARDS
    ]
    for path, card in PLANNED:
        options = ARGUMENTS.get(path, "").split()
        command = [python, path, *options]
        name = f"plan.{path.removesuffix('.py').replace('/', '.')}@{card}"
        asked.append(Case(name, ("plan", "--gpu", card, "--format", "json", "--", *command), Path(path)))
    asked.append(Case("check", ("check", "workloads", "examples", "--format", "json")))
    asked.append(Case("gpus", ("gpus", "--format", "json")))
    asked.append(Case("explain.log", ("explain", "examples/broken/out-of-memory.log", "--format", "json")))
    for snapshot in sorted(ROOT.glob("crates/memfit-recording/tests/data/*.pickle")):
        path = snapshot.relative_to(ROOT).as_posix()
        for verb in ("explain", "replay"):
            asked.append(Case(f"{verb}.{snapshot.stem}", (verb, path, "--format", "json")))
    return asked


def missing_import(script: Path, python: str) -> str | None:
    """The first library of the script's own imports that this interpreter lacks."""
    import ast

    tree = ast.parse((ROOT / script).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    names -= set(sys.stdlib_module_names) | {path.stem for path in (ROOT / script).parent.glob("*.py")}
    probe = (
        "import importlib.util,sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    )
    done = subprocess.run([python, "-c", probe, *sorted(names)], capture_output=True, text=True, check=True)
    lacking = done.stdout.split()
    return lacking[0] if lacking else None


def ask(case: Case, memfit: str, folder: Path) -> str:
    """Asks one question and keeps the answer; gives a line that says how it went."""
    started = time.monotonic()
    env = {**os.environ, "PYTHONPATH": "workloads", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        extra = ["-o", str(Path(scratch) / "plan.toml")] if case.arguments[0] == "plan" else []
        arguments = [case.arguments[0], *extra, *case.arguments[1:]]
        try:
            done = subprocess.run(
                [memfit, *arguments],
                cwd=ROOT,
                env=env,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
            answer: dict[str, Any] = {"status": done.returncode}
            try:
                answer["report"] = json.loads(done.stdout)
            except json.JSONDecodeError:
                answer["output"] = done.stdout[-2000:] + done.stderr[-2000:]
        except subprocess.TimeoutExpired:
            answer = {"status": "timeout"}
    (folder / f"{case.name}.json").write_text(json.dumps(answer, indent=1) + "\n")
    return f"{time.monotonic() - started:6.1f} s  {case.name}  status {answer['status']}"


def collect(folder: Path, memfit: str, python: str, jobs: int, only: str) -> None:
    """Asks all questions that have no answer in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    lacking = {script: missing_import(script, python) for script in scripts()}
    for script, library in lacking.items():
        if library:
            print(f"skipped  {script}: {library} is not installed", flush=True)
    todo = [
        case
        for case in cases(python)
        if only in case.name
        and not (folder / f"{case.name}.json").exists()
        and not (case.script and lacking.get(case.script))
    ]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(lambda case: ask(case, memfit, folder), todo):
            print(line, flush=True)


def comparable(value: Any, texts: bool) -> Any:
    """The value without what depends on this machine, and without texts unless they are wanted."""
    if isinstance(value, list):
        return [comparable(each, texts) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: comparable(each, texts) if texts or key not in TEXTS else outline(each)
        for key, each in value.items()
        if key not in VOLATILE
    }


def outline(text: Any) -> Any:
    """Return the part of a text that is compared: that it exists, or the number of entries."""
    return len(text) if isinstance(text, (list, dict)) else type(text).__name__


def is_time(where: str) -> bool:
    return "_ms" in where.rpartition(".")[2]


def is_close(before: Any, after: Any) -> bool:
    """Return `True` if two estimated times are close: they vary a little with the order in which loader
    processes answer.
    """
    both = isinstance(before, (int, float)) and isinstance(after, (int, float))
    return both and abs(before - after) <= TIME_TOLERANCE * max(abs(before), abs(after))


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Every place where two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted({*before, *after})
        missing = object()
        return [
            line
            for key in keys
            for line in differences(before.get(key, missing), after.get(key, missing), f"{where}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for index, pair in enumerate(zip(before, after, strict=True))
            for line in differences(*pair, f"{where}[{index}]")
        ]
    if before == after or (is_time(where) and is_close(before, after)):
        return []
    short = [str(each) if len(str(each)) < 120 else f"{str(each)[:117]}..." for each in (before, after)]
    return [f"{where.lstrip('.')}: {short[0]} -> {short[1]}"]


def compare(before: Path, after: Path, texts: bool) -> int:
    """Prints every difference; 1 if there is one."""
    names = sorted({path.name for path in [*before.glob("*.json"), *after.glob("*.json")]})
    different = 0
    for name in names:
        paths = [before / name, after / name]
        absent = [path for path in paths if not path.exists()]
        if absent:
            print(f"{name}: no answer in {absent[0].parent}")
            different += 1
            continue
        old, new = (comparable(json.loads(path.read_text()), texts) for path in paths)
        found = differences(old, new)
        different += bool(found)
        for line in found:
            print(f"{name.removesuffix('.json')}: {line}")
    print(f"{len(names)} reports compared, {different} differ")
    return 1 if different or not names else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--memfit", default="memfit")
    collecting.add_argument("--python", default=sys.executable)
    collecting.add_argument("--jobs", type=int, default=2)
    collecting.add_argument("--only", default="", help="names that hold this text")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--texts", action="store_true", help="texts are compared as well")
    arguments = parser.parse_args()
    if arguments.verb == "collect":
        collect(arguments.folder, arguments.memfit, arguments.python, arguments.jobs, arguments.only)
        return 0
    return compare(arguments.before, arguments.after, arguments.texts)


if __name__ == "__main__":
    sys.exit(main())
