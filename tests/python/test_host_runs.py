"""Runs on the host: a changed script trains like the original, or a difference is found.

Each is started as by `memfit plan --diff`, without the virtual GPU: the probe and its setup.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import host_loops
import pytest
import torch
from tiers import first

PROBE = Path(__file__).resolve().parents[2] / "python" / "memfit" / "_probe"
SETUP = {
    "protocol": 5,
    "cards": [],
    "steps": 4,
    "forward_steps": 0,
    "cover_full": False,
    "stacks": False,
    "others": {"number": None, "conditions": None, "times": 0},
    "seeded": True,
    "synthetic": {"weights": False, "data": None},
}
# A run ends within seconds; this is for a machine that does much else.
PATIENCE_S = 240


class Runs:
    """Runs of one script and of what becomes of it."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(host_loops.HEAD + script)
        self.kept = folder / "kept"
        self.kept.mkdir()
        self.count = 0

    def run(self, part: str, changed: str | None = None) -> dict[str, Any]:
        """Return the report of one run; `changed` replaces the script."""
        self.count += 1
        run = self.folder / f"run-{self.count}"
        run.mkdir()
        host = {"folder": str(self.kept), "samples": 5, "part": part}
        (run / "setup.json").write_text(json.dumps({**SETUP, "host": host}))
        if changed is not None:
            (run / "edits.json").write_text(json.dumps({str(self.script): host_loops.HEAD + changed}))
        environment = {**os.environ, "MEMFIT_RUN_DIR": str(run), "PYTHONPATH": str(PROBE)}
        with subprocess.Popen(
            [sys.executable, self.script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            # When all was seen, it waits to be ended.
            until = time.monotonic() + PATIENCE_S
            while process.poll() is None and not any(run.glob("finished-*")) and time.monotonic() < until:
                time.sleep(0.05)
            process.kill()
            _, errors = process.communicate()
        messages = [
            json.loads(line)
            for file in run.glob("messages-*.jsonl")
            for line in file.read_text().splitlines()
        ]
        told = [message for message in messages if message["kind"] == "host_run"]
        assert len(told) == 1, (errors.decode(), messages)
        return told[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("host"), host_loops.WHOLE)
    first = runs.run("first")
    assert first["steps"] == 4
    again = runs.run("again")
    assert (again["equal"], again["difference"], again["steps"]) == (True, "0.0", 4)
    return runs


@pytest.mark.parametrize(
    "name", first(host_loops.CHANGES, besides=["every part as if it were the whole", "fewer steps"])
)
def test_a_changed_loop_is_compared_with_the_loop_as_it_was(whole: Runs, name: str) -> None:
    changed, equal, prints = host_loops.CHANGES[name]
    told = whole.run("changed", changed)
    assert told["equal"] == equal, told
    difference = float(told["difference"])
    if name == "a hundredth too much":
        assert 0.005 < difference < 0.02
        assert told["parameter"].endswith((".weight", ".bias"))
    elif equal:
        assert difference < 1e-4
    if prints is not None:
        assert (told["printed"] is None) == prints, told["printed"]


def test_a_run_does_not_import_pytorchs_compiler(tmp_path: Path) -> None:
    """Neither for an optimizer nor for the modes with which random numbers are followed."""
    check = "    import sys\n    assert 'torch._dynamo.eval_frame' not in sys.modules\n"
    begins = "    total = 0.0\n"
    assert begins in host_loops.WHOLE
    told = Runs(tmp_path, host_loops.WHOLE.replace(begins, check + begins)).run("first")
    assert told["steps"] == 4


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("stateful"), host_loops.STATEFUL)
    runs.run("first")
    again = runs.run("again")
    assert (again["equal"], again["difference"], again["state"]) == (True, "0.0", None)
    return runs


@pytest.mark.parametrize("name", first(host_loops.STATEFUL_CHANGES, besides=["the average updated twice"]))
def test_state_that_no_gradient_shows_is_compared(stateful: Runs, name: str) -> None:
    changed, state = host_loops.STATEFUL_CHANGES[name]
    told = stateful.run("changed", changed)
    assert told["equal"] == (state is None), json.dumps(told)
    if state is not None:
        assert told["state"].endswith(state), told
        assert told["parameter"] is None
        assert float(told["difference"]) > 0.01


def test_rounding_of_an_update_does_not_grow_from_step_to_step(tmp_path: Path) -> None:
    runs = Runs(tmp_path, host_loops.SENSITIVE)
    runs.run("first")
    told = runs.run("changed", host_loops.SENSITIVE.replace("lr=1e-2", "lr=1e-2, fused=True"))
    assert (told["equal"], told["steps"]) == (True, 4), told
    # Without going on from the same parameters it would be over a hundredth.
    assert float(told["difference"]) < 1e-4


def test_batches_that_a_script_makes_itself_are_made_of_the_same_samples(tmp_path: Path) -> None:
    runs = Runs(tmp_path, host_loops.OWN_BATCHES)
    runs.run("first")
    told = runs.run("changed", host_loops.OWN_SMALLER_BATCHES)
    assert told["equal"], told
    assert told["steps"] == 4
    other = runs.run(
        "changed", host_loops.OWN_SMALLER_BATCHES.replace("loss / 2).backward", "loss).backward")
    )
    assert not other["equal"]


def test_rows_draw_the_same_in_a_whole_and_in_its_parts() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(PROBE)!r})
import torch
from memfit_probe.host.draws import Draws

draws = Draws(torch)
draws.arm()
probabilities = torch.tensor([[0.1, 0.9, 0.3]]).repeat(7, 1)
ways = dict(
    randn=lambda n: torch.randn(n, 3),
    rand=lambda n: torch.rand((n, 2, 2)),
    randint=lambda n: torch.randint(0, 99, (n,)),
    like=lambda n: torch.rand_like(torch.zeros(n, 4)),
    normal=lambda n: torch.normal(torch.zeros(n, 4), 1.0),
    in_place=lambda n: torch.empty(n, 5).exponential_(),
    bernoulli=lambda n: torch.bernoulli(probabilities[:n]),
    multinomial=lambda n: torch.multinomial(probabilities[:n], 2),
    dropout=lambda n: torch.nn.functional.dropout(torch.ones(n, 8), 0.5),
    own=lambda n: torch.randn(n, 3, generator=torch.Generator()),
)
for name, way in ways.items():
    def drawn(rows):
        return way(rows)
    whole = drawn(7)
    draws.stepped()
    draws.step -= 1
    parts = []
    for rows in (2, 4, 1):
        parts.append(drawn(rows))
        draws.part_is_over()
    draws.stepped()
    draws.step -= 1
    assert torch.equal(whole, torch.cat(parts)), name
    assert len(whole.flatten().unique()) > 1, name
    assert not torch.equal(whole[:1].expand_as(whole), whole), name
    draws.step += 1
    if whole.numel() > 20:
        assert not torch.equal(whole, drawn(7)), name
    draws.stepped()
permuted = torch.randperm(9)
assert sorted(permuted.tolist()) == list(range(9))
print("alike")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "alike\n", done.stderr


def test_no_gradient_is_told_apart_from_a_gradient_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROBE))
    from memfit_probe.host import outcome

    some, zeros = torch.ones(3), torch.zeros(3)
    check = {
        "equal": ([some, None], [some, None], True),
        "a gradient that is missing": ([some, None], [some, some], False),
        "zeros where there was none": ([some, zeros], [some, None], True),
        "another shape": ([torch.ones(2)], [some], False),
        "another number of parameters": ([some], [some, some], False),
        "no number": ([some * float("nan")], [some], False),
        "rounding": ([some * (1 + 1e-5)], [some], True),
        "a small one beside a large one": ([some, some * 2e-6], [some, some * 1e-6], True),
        "a hundredth": ([some * 1.01], [some], False),
    }
    for name, (ours, wanted, equal) in check.items():
        assert outcome.difference(ours, wanted).equal == equal, name
