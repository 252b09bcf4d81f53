"""A killed training that goes on, and what importing memfit costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import memfit
import torch
from torch import nn
from training import (
    Perceptron,
    batches,
    flat,
    mean_loss,
)


def test_a_killed_training_goes_on_as_if_it_was_not(tmp_path: Any) -> None:
    """The state is taken after every batch in turn, also within a window."""
    data = batches("perceptron", [8, 5, 8, 3, 8], torch.float64)

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, memfit.Step]:
        torch.manual_seed(0)
        model = Perceptron(0.5).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = memfit.Step(model, optimizer, mean_loss, accumulate=2, micro_batch=4)
        torch.manual_seed(1)
        return model, optimizer, step

    expected, _, step = begin()
    for batch in data:
        step(batch)
    step.finish()
    for stop in range(len(data)):
        model, optimizer, step = begin()
        for batch in data[:stop]:
            step(batch)
        file = tmp_path / f"{stop}.pt"
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step.state_dict()},
            file,
        )
        model, optimizer, step = begin()
        torch.manual_seed(99)
        state = torch.load(file, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step.load_state_dict(state["step"])
        for batch in data[stop:]:
            step(batch)
        step.finish()
        assert torch.allclose(flat(model), flat(expected), rtol=1e-12, atol=0), f"after {stop} batches"


def test_importing_memfit_imports_no_torch() -> None:
    code = "import sys, memfit; assert 'torch' not in sys.modules; memfit.Step; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
