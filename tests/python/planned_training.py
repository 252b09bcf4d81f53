"""Scripts trained by themselves and under a plan, from outside, on this machine's CPU: what each of
them learnt.

    python planned_training.py CASES.json     # name: {script, planned, plan}

The probe runs as it does on a virtual card, but that there is no card: what it asks the watcher library for
is answered here. A script leaves what it learnt, as lists of numbers, in `LEARNT`. Each runs in a child of
its own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).resolve().parents[2] / "python" / "memfit"
SETUP = {
    "steps": 0,
    "cards": [],
    "cover_full": False,
    "stacks": False,
    "synthetic": {"weights": False, "data": None},
}


class Watch:
    """Stands for the watcher library: knows how deep calls are, and which phase it is."""

    def __init__(self) -> None:
        self.open = self.now = 0

    def enter(self, _number: int) -> int:
        self.open += 1
        return self.open - 1

    def exit(self) -> int:
        self.open -= 1
        return self.open

    def depth(self) -> int:
        return self.open

    def phase(self, phase: int) -> int:
        before, self.now = self.now, phase
        return before

    def current_phase(self) -> int:
        return self.now

    def stats(self, _device: int) -> Any:
        return types.SimpleNamespace(allocated=0)

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None


def in_a_child(work: Callable[[], Any]) -> Any:
    """Run work in a child process; return its result, or its error's text."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            answer = work()
        except BaseException:
            answer = traceback.format_exc()
        with os.fdopen(writes, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        answer = json.load(file)
    os.waitpid(child, 0)
    return answer


def learnt(script: str) -> Any:
    """Return the facts that the probe collected about a script."""
    names = sys.modules["__main__"].__dict__
    exec(compile(script, "/train.py", "exec"), names)
    return names["LEARNT"]


def under(session: Any, folder: Path, case: dict[str, Any]) -> Any:
    """Return a script's results under its plan, and the messages about it."""
    planned = session.planned
    planned.read(case["plan"])
    # A script that has read its arguments calls it where it would use a card for the first time.
    sys.modules["__main__"].__dict__["first_use"] = planned.retune
    answer = learnt(case["planned"])
    planned.send_facts()
    messages = folder.glob(f"messages-{os.getpid()}*")
    lines = [json.loads(line) for file in messages for line in file.read_text().splitlines()]
    return answer, [line for line in lines if line["kind"] in ("note", "refused", "training")]


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(tempfile.mkdtemp())
    (folder / "setup.json").write_text(json.dumps(SETUP))
    (folder / "plan.json").write_text("{}")
    (folder / "memfit_levers").symlink_to(PYTHON / "_levers")
    os.environ["MEMFIT_RUN_DIR"] = str(folder)
    sys.path[:0] = [str(PYTHON / "_probe"), str(folder)]

    import torch
    import torch.utils.data

    torch.set_num_threads(1)
    # Import the modules of the first optimizer and checkpoint once, before the children are forked.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1).step()
    plain = {name: in_a_child(lambda case=case: learnt(case["script"])) for name, case in cases.items()}
    watch, probe = (importlib.import_module(f"memfit_probe.{name}") for name in ("watch", "session"))
    watch.find = Watch
    session = probe.Session(torch)
    session.arm()
    # The final message is for the parent process.
    atexit.unregister(session._at_exit)
    planned = {
        name: in_a_child(lambda case=case: under(session, folder, case)) for name, case in cases.items()
    }
    print(json.dumps({"plain": plain, "planned": planned}))


if __name__ == "__main__":
    main()
