"""Run the steps of `action.yml` in a shell, as they are written, on a checkout with awkward names in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BAD = """import torch

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    (criterion(model(x), y) / 4).backward()
    if (step + 1) % 4 == 0 or step + 1 == len(loader):
        optimizer.step()
"""
RULE = "zero-grad-inside-window"
# Names with a space, with a dash in front, and with what a shell would take apart.
NAMES = ("my scripts/train model.py", "-v/train.py", "it's/$HOME.py", "plain/train.py")
# As a workflow says them: a line each; quoted; two on a line; and one that the shell must not read.
PATHS = 'my scripts\n-v\n"it\'s" plain\n'


class ActionError(Exception):
    """A step failed to do its task."""


def steps(file: Path) -> dict[str, Any]:
    import yaml

    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


def checkout(folder: Path) -> Path:
    """A folder of scripts, each with one error in it."""
    for name in NAMES:
        script = folder / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(BAD)
    return folder


def wanted(condition: str, inputs: dict[str, str]) -> bool:
    """Return `True` if a step's `if` holds: comparisons of inputs with strings, joined by `&&`."""
    for part in filter(None, condition.split("&&")):
        found = re.fullmatch(r"\s*inputs\.([\w-]+) (==|!=) '([^']*)'\s*", part)
        if not found:
            raise ActionError(f"the condition is of no known form: {condition}")
        if (inputs[found[1]] == found[3]) != (found[2] == "=="):
            return False
    return True


def carry_out(
    file: Path, given: dict[str, str], folder: Path, leave_out: tuple[str, ...] = ()
) -> dict[str, tuple[int, str]]:
    """Run the steps; gives each one's exit status and output by its name."""
    action = steps(file)
    inputs = {name: str(value["default"]) for name, value in action["inputs"].items()} | given
    runner = folder / "runner"
    runner.mkdir(parents=True, exist_ok=True)
    work = folder / "checkout"
    ended = {}
    for step in action["runs"]["steps"]:
        if step["name"] in leave_out or not wanted(step.get("if", ""), inputs):
            continue
        environment = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda name: inputs[name[1]], value)
            for key, value in step["env"].items()
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "RUNNER_TEMP": str(runner), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        ended[step["name"]] = (done.returncode, done.stdout)
    return ended


def hold(ended: dict[str, tuple[int, str]], folder: Path) -> None:
    """The steps found each script's error, under its own name."""
    status, said = ended["Check"]
    if status != 1 or said.count("::error file=") != len(NAMES):
        raise ActionError(f"the check ended with {status} and should have found {len(NAMES)} errors:\n{said}")
    found = json.loads((folder / "checkout/found.sarif").read_text())
    results = [result for run in found["runs"] for result in run["results"] if result["ruleId"] == RULE]
    if len(results) != len(NAMES):
        raise ActionError(
            f"SARIF has {len(results)} errors and should have {len(NAMES)}:\n{ended['Write SARIF'][1]}"
        )


def rehearse(file: Path, package: Path, folder: Path) -> None:
    """Install the package as the action does, and let it check."""
    checkout(folder / "checkout")
    given = {"paths": PATHS, "sarif": "found.sarif", "python": sys.executable, "package": str(package)}
    ended = carry_out(file, given, folder)
    if ended["Install"][0]:
        raise ActionError(ended["Install"][1])
    hold(ended, folder)
