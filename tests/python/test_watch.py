"""`memfit watch`: a run that somebody else has started, looked at from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from runs import MIB, invoke, memfit

# Two steps; then it says so, and goes on when it is told to.
SCRIPT = """
import sys
import torch

model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with open(sys.argv[1], "w") as file:
    file.write("two steps are done")
with open(sys.argv[2]) as file:
    file.read()
"""


@pytest.fixture
def waiting(tmp_path):
    """A run whose script has done two steps, and waits."""
    # Wherever the tests lie, the command is longer than a screen is wide.
    folder = tmp_path / ("a-folder-with-a-name-that-alone-fills-a-line-of-a-terminal" * 2)
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    said, go = folder / "said", folder / "go"
    os.mkfifo(said)
    os.mkfifo(go)
    command = [memfit(), "run", "--gpu", "t4", "--steps", "0", "--no-prove", "--", sys.executable, "train.py"]
    run = subprocess.Popen(
        [*command, str(said), str(go)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert said.read_text() == "two steps are done"
        yield run, go
    finally:
        run.terminate()
        run.communicate()


def test_a_run_is_seen_while_it_goes_on_and_its_end_ends_the_watching(waiting):
    run, go = waiting
    once = invoke(["watch", str(run.pid), "--once", "--format", "json"])
    assert once.status == 0, once.stderr
    report = json.loads(once.stdout)
    assert report["schema"] == "memfit.watch/1"
    (seen,) = report["runs"]
    assert seen["steps"] == 2
    assert seen["steps_wanted"] is None
    assert not seen["ended"]
    assert seen["command"][1] == "train.py"
    assert seen["kind"] == "virtual"
    (card,) = seen["cards"]
    assert "T4" in card["name"]
    # Weights of 64 MiB stay; their gradients are there at the peak only.
    assert 64 * MIB < card["used"] <= card["peak"] < card["capacity"]
    (process,) = seen["processes"]
    assert process["steps"] == 2
    assert process["alive"]
    assert 64 * MIB <= process["allocated"] < process["peak_allocated"]
    assert process["used"] <= card["used"]
    assert process["resident"] > 100 * MIB

    # Any process of the run names it, and nobody need be named; people get the same in words.
    assert (
        json.loads(invoke(["watch", str(seen["pid"]), "--once", "--format", "json"]).stdout)["runs"][0]["pid"]
        == (seen["pid"])
    )
    words = invoke(["watch", "--once"]).stdout
    assert "train.py" in words
    assert "step 2" in words
    assert "Tesla T4" in words

    watching = subprocess.Popen(
        [memfit(), "watch", str(run.pid), "--format", "json", "--every", "0.05s"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    first = json.loads(watching.stdout.readline())
    assert not first["runs"][0]["ended"]
    go.write_text("")
    rest = [json.loads(line) for line in watching.stdout]
    assert watching.wait(timeout=60) == 0
    assert rest[-1]["runs"][0]["ended"]
    assert run.wait(timeout=60) == 0


def test_what_is_no_run_is_said_to_be_none():
    alone = invoke(["watch", str(os.getpid()), "--once"])
    assert alone.status == 2
    assert "does not belong to a memfit run" in alone.stderr
    assert "memfit run" in alone.stderr
