"""Looking at a running function's variables keeps nothing of what is in them."""

from __future__ import annotations

import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from memfit._levers.variables import set_variable, variables
from runs import completed

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "memfit"


class Thing:
    """Something that can be watched as it goes."""


def test_variables_that_a_function_releases_are_freed() -> None:
    frame = sys._getframe()
    thing = Thing()
    gone = weakref.ref(thing)
    found = variables(frame)
    assert found["thing"] is thing
    del found, thing
    assert gone() is None


def test_a_functions_own_locals_are_left_to_it() -> None:
    first = 1
    kept = locals()
    second = 2
    assert variables(sys._getframe())["second"] == second
    assert kept["first"] == first


def test_a_module_keeps_its_variables() -> None:
    code = "import sys\nfrom memfit._levers.variables import variables\na = 1\nvariables(sys._getframe())\nprint(a)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


def test_a_variable_gets_another_value() -> None:
    def inner() -> Any:
        number = 1
        thing = Thing()
        gone = weakref.ref(thing)
        set_variable(sys._getframe(), "number", 7)
        del thing
        return number, gone()

    assert inner() == (7, None)


def test_frames_are_looked_at_in_one_place() -> None:
    looking = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"\bf_locals\b", path.read_text(encoding="utf-8"))
    ]
    # The probe looks at those of a script that has failed.
    looking = [path for path in looking if not path.startswith("_probe/")]
    assert looking == ["_levers/variables.py"]


LETS_GO = """
import torch


def main():
    first = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda()
    second = torch.nn.Sequential(torch.nn.Linear(256, 8), torch.nn.Flatten(0)).cuda()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(3):
        batch = torch.zeros(65536, 256, device="cuda")
        with torch.no_grad():
            hidden = first(batch)
        # The second model's name is looked up in these variables.
        loss = second(hidden.detach()).sum()
        batch = hidden = None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = None


main()
"""


def test_a_run_holds_no_batch_longer_than_the_script_does(tmp_path: Path) -> None:
    script = tmp_path / "lets_go.py"
    script.write_text(LETS_GO)
    batch = 65536 * 256 * 4
    # A batch, the first layer's output and what it becomes; a batch that stayed would be a fourth.
    peak = completed(str(script), gpu="t4").peak["allocated"]
    assert 3 * batch <= peak < 3.5 * batch
