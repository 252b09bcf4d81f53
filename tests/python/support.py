"""Run a piece of Python on a virtual device, and get back what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs import memfit

# The start of every piece: `answer(...)` prints the result for the test.
PRELUDE = """
import atexit, json, os, sys, threading, warnings
warnings.filterwarnings("ignore")

def give_way():
    # A thread of autograd's may still want the interpreter, to let go of its objects, when a script ends with a backward
    # pass; Python ends the process if it does not get it in time.
    for _ in range(20):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

atexit.register(give_way)

def answer(**values):
    with open(os.environ["MEMFIT_TEST_ANSWER"], "w") as file:
        json.dump(values, file)

import torch
device = torch.device("cuda")
"""


@dataclass(frozen=True)
class Answer:
    """The exit status and output of a piece of Python."""

    status: int
    output: str
    said: dict[str, Any]
    report: dict[str, Any]

    @property
    def unmodelled(self) -> dict[str, int]:
        """The calls that the device refused, with their counts."""
        return {each["call"]: each["count"] for each in self.report["fidelity"]["unmodelled"]}


# Starts `command` with a virtual `gpu` in front; gives its status, its output and the run's report.
Starter = Callable[[str, list[str], dict[str, str]], tuple[int, str, dict[str, Any]]]


def through_memfit(
    gpu: str, command: list[str], env: dict[str, str], options: Sequence[str] = ()
) -> tuple[int, str, dict[str, Any]]:
    """The way of a user."""
    done = subprocess.run(
        [
            memfit(),
            "run",
            "--gpu",
            gpu,
            "--steps",
            "0",
            "--no-prove",
            "--format",
            "json",
            *options,
            "--",
            *command,
        ],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = (
        json.loads(done.stdout) if done.stdout.lstrip().startswith("{") else {"fidelity": {"unmodelled": []}}
    )
    return done.returncode, done.stderr + done.stdout, report


def in_one_process(pieces: dict[str, str]) -> str:
    """Return a script that runs pieces of code one after the other, and answers with the errors of those that
    fail.
    """
    return f"""
import textwrap, traceback
failed = {{}}
for name, piece in {pieces!r}.items():
    try:
        exec(textwrap.dedent(piece), dict(globals()))
    except Exception:
        failed[name] = traceback.format_exc()
answer(failed=failed)
"""


def on_device(code: str, folder: Path, gpu: str = "rtx-4090", start: Starter = through_memfit) -> Answer:
    """Run `code` as a script on a virtual `gpu`. It says what it found with `answer(name=value)`."""
    script, said = folder / "script.py", folder / "answer.json"
    script.write_text(PRELUDE + textwrap.dedent(code), encoding="utf-8")
    status, output, report = start(gpu, [sys.executable, str(script)], {"MEMFIT_TEST_ANSWER": str(said)})
    return Answer(status, output, json.loads(said.read_text()) if said.is_file() else {}, report)
