"""Adaptive solvers of differential equations accept their steps, of which only a GPU knows the number."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device

pytest.importorskip("torch")

# The parts of torchdiffeq that take steps.
SOLVER = """
import torch
from collections import namedtuple

State = namedtuple("State", "y1, t0, t1, dt, interp_coeff")

def _interp_evaluate(coefficients, t0, t1, t):
    return coefficients

class RKAdaptiveStepsizeODESolver:
    def __init__(self, func, y0, t):
        self.func = func
        self.rk_state = State(y0, t[0], t[0], (t[1] - t[0]) * func(y0).abs().mean().clamp(0, 1), y0)

    def _advance(self, next_t):
        while next_t > self.rk_state.t1:
            self.rk_state = self._adaptive_step(self.rk_state)
        return _interp_evaluate(self.rk_state.interp_coeff, self.rk_state.t0, self.rk_state.t1, next_t)

    def _adaptive_step(self, state):
        y0, _, t0, dt, _ = state
        assert t0 + dt > t0, "underflow in dt"
        change = self.func(y0)
        accept_step = (change - self.func(y0 + change)).abs().mean() <= 1
        if accept_step:
            y1, t1 = y0 + change * dt, t0 + dt
        else:
            y1, t1, dt = y0, t0, dt / 5
        return State(y1, t0, t1, dt, y1)
"""
TRAINING = """
    sys.path.insert(0, {site!r})
    from torchdiffeq._impl.rk_common import RKAdaptiveStepsizeODESolver

    net = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    times = torch.linspace(0, 1, 4, device=device)
    for _ in range(3):
        y0 = torch.randn(256, 64, device=device)
        with torch.{mode}():
            solver = RKAdaptiveStepsizeODESolver(net, y0, times)
            ends = [solver._advance(time) for time in times[1:]]
        net(ends[-1]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    answer(ends=len(ends))
"""


@pytest.mark.parametrize(("mode", "kept"), [("enable_grad", True), ("no_grad", False)])
def test_an_adaptive_solver_takes_a_step_and_tells_that_its_number_is_unknown(
    mode: str, kept: bool, tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "torchdiffeq" / "_impl"
    package.mkdir(parents=True)
    for name, text in {"../__init__.py": "", "__init__.py": "", "rk_common.py": SOLVER}.items():
        (package / name).write_text(text)
    answer = on_device(TRAINING.format(site=str(package.parents[1]), mode=mode), tmp_path)
    assert answer.said == {"ends": 3}, answer.output
    solver = [
        value for value in answer.report["fidelity"]["values"] if "adaptive ODE solver" in value["call"]
    ]
    assert bool(solver) == kept, answer.output
    # Steps that autograd keeps may be any number; others leave nothing behind.
    assert answer.report["verdict"] == ("unknown" if kept else "fits"), answer.output
