"""Facts that the probe counts about a training run, in a process of its own on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

BEGIN = """
import json
import sys
sys.path[:0] = [sys.argv[1]]
import torch
from torch import nn
from torch.utils.data import DataLoader
from memfit_probe import facts, planned

class Session:
    torch = torch
    setup = {"steps": 0}
    optimizers = ()
    watch = None

session = Session()
planned = session.planned = planned.Planned(session, {"micro_batch": int(sys.argv[2]) or None})
said = []
planned._refuse = lambda name, why: said.append(name)
planned.arm()
engine = torch.autograd._engine_run_backward
def run(tensors, gradients, *rest, accumulate_grad, **named):
    gradients = planned.seeds(gradients) if accumulate_grad else gradients
    return engine(tensors, gradients, *rest, accumulate_grad=accumulate_grad, **named)
torch.autograd._engine_run_backward = run
original = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
def advance(self):
    batch = original(self)
    planned.given(self)
    return batch
torch.utils.data.dataloader._BaseDataLoaderIter.__next__ = advance

def optimizer_of(*modules):
    made = torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1)
    planned.appeared(made)
    return made

loader = DataLoader(torch.ones(24, 3), batch_size=8)
def fresh():
    global model, other
    model, other = nn.Linear(3, 3), nn.Linear(3, 1)
"""
END = """
backwards = planned.facts.collect(model, [model])["backwards"]
print(json.dumps({name: {"backwards": backwards, "refused": said}}))
"""

TRAININGS = {
    "one": (
        1,
        """
        optimizer = optimizer_of(model)
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        """,
    ),
    "a closure": (
        1,
        """
        optimizer = optimizer_of(model)
        for x in loader:
            def closure():
                optimizer.zero_grad()
                loss = model(x).sum()
                loss.backward()
                return loss
            optimizer.step(closure)
        """,
    ),
    "two optimizers of one backward": (
        1,
        """
        first, second = optimizer_of(model), optimizer_of(other)
        for x in loader:
            other(model(x)).sum().backward()
            first.step()
            second.step()
        """,
    ),
    "a penalty on gradients": (
        1,
        """
        optimizer = optimizer_of(model)
        for x in loader:
            x.requires_grad_()
            loss = model(x).square().sum()
            (inner,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + inner.square().sum()).backward()
            optimizer.step()
        """,
    ),
    "a scaler": (
        1,
        """
        optimizer, scaler = optimizer_of(model), torch.amp.GradScaler("cpu")
        for x in loader:
            optimizer.zero_grad()
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "what was trained before": (
        1,
        """
        for x in loader:
            model(x).sum().backward()
        optimizer = optimizer_of(model)
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
        """,
    ),
    "two losses": (
        2,
        """
        optimizer = optimizer_of(model)
        for x in loader:
            model(x).sum().backward()
            model(2 * x).sum().backward()
            optimizer.step()
        """,
    ),
    "accumulation": (
        3,
        """
        optimizer = optimizer_of(model)
        for _ in range(2):
            for x in loader:
                model(x).sum().backward()
            optimizer.step()
        """,
    ),
    "clipping": (
        1,
        """
        import types
        optimizer = optimizer_of(model)
        planned.target = types.SimpleNamespace(updates_in_backward=True, contexts=[])
        for x in loader:
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        """,
    ),
    "turns": (
        2,
        """
        maker, judge = optimizer_of(model), optimizer_of(other)
        for x in loader:
            other(model(x).detach()).sum().backward()
            judge.step()
            other(model(x)).sum().backward()
            maker.step()
        """,
    ),
}


def counted(micro_batch: int, scripts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Count the facts of each training run, and collect the refused levers."""
    probe = Path(__file__).resolve().parents[2] / "python/memfit/_probe"
    lines = [BEGIN]
    for name, script in scripts.items():
        lines += [
            f"planned.forget(); said.clear(); fresh(); name = {name!r}",
            *(line[8:] for line in script.splitlines()),
            END,
        ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(probe), str(micro_batch)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        told.update(json.loads(line))
    return told


@pytest.mark.parametrize("micro_batch", [0, 4])
def test_backwards_of_a_step_are_counted_without_the_pieces_that_memfit_makes(micro_batch: int) -> None:
    # Divided, accumulation and turns are refused.
    chosen = {
        name: each
        for name, each in TRAININGS.items()
        if not micro_batch or name not in ("accumulation", "turns")
    }
    found = counted(micro_batch, {name: script for name, (_, script) in chosen.items()})
    assert {name: told["backwards"] for name, told in found.items()} == {
        name: backwards for name, (backwards, _) in chosen.items()
    }
    assert {name for name, told in found.items() if told["refused"]} == {"clipping"}


def test_a_librarys_own_pieces_are_memfits() -> None:
    script = """
        planned.facts.pieces = 4
        optimizer = optimizer_of(model)
        for _ in range(2):
            for x in torch.ones(4, 2, 3):
                model(x).sum().backward()
            optimizer.step()
        """
    assert counted(0, {"Trainer": script})["Trainer"]["backwards"] == 1
