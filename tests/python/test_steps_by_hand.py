"""Steps of trainings without PyTorch's optimizers: updated by hand, or by a class of the script's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import invoke

HEAD = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()

class Momentum:
    def __init__(self, parameters):
        self.parameters, self.state = list(parameters), {}

    def step(self):
        for each in self.parameters:
            state = self.state.setdefault(each, torch.zeros_like(each.data))
            each.data.add_(state.mul_(0.9).add_(each.grad.data), alpha=-0.1)

    def zero_grad(self):
        for each in self.parameters:
            each.grad = None

def loss():
    inputs = torch.randn(32, 256, device="cuda")
    return nn.functional.cross_entropy(model(inputs), torch.zeros(32, dtype=torch.int64, device="cuda"))

own = Momentum(model.parameters())
"""
LOOPS = {
    "in place": """
for number in range(40):
    loss().backward()
    with torch.no_grad():
        for each in model.parameters():
            each -= 0.1 * each.grad
            each.grad.zero_()
""",
    "in place, reset before the backward pass": """
for number in range(40):
    value = loss()
    for each in model.parameters():
        if each.grad is not None:
            each.grad.zero_()
    value.backward()
    for each in model.parameters():
        each.data.add_(each.grad.data, alpha=-0.1)
""",
    "by a class": """
for number in range(40):
    loss().backward()
    own.step()
    own.zero_grad()
""",
    "by a class, accumulated": """
for number in range(40):
    loss().backward()
    if number % 4 == 3:
        own.step()
        own.zero_grad()
""",
    "then by PyTorch's": """
for number in range(40):
    if number == 2:
        own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss().backward()
    own.step()
    own.zero_grad()
""",
    "never": """
for number in range(40):
    with torch.no_grad():
        loss()
""",
    "only gradients of inputs": """
for number in range(40):
    inputs = torch.randn(32, 256, device="cuda", requires_grad=True)
    torch.autograd.grad(model(inputs).sum(), inputs)
""",
}


@pytest.mark.parametrize(
    ("loop", "passes", "steps"),
    [
        ("in place", 3, 3),
        ("in place, reset before the backward pass", 4, 3),
        ("by a class", 3, 3),
        ("by a class, accumulated", 12, 3),
        ("then by PyTorch's", 5, 3),
        ("never", 40, None),
        ("only gradients of inputs", 40, None),
    ],
)
def test_a_run_ends_after_three_steps(loop: str, passes: int, steps: int | None, tmp_path: Path) -> None:
    script, seen = tmp_path / "train.py", tmp_path / "seen"
    count = f"    with open({str(seen)!r}, 'a') as file: file.write('.')\n"
    head, body = LOOPS[loop].split("for number in range(40):\n")
    script.write_text(f"{HEAD}{head}for number in range(40):\n{count}{body}")
    report = invoke(["run", "--gpu", "t4", "--format", "json", "--", "python", str(script)], tmp_path).report
    assert report["verdict"] == "fits"
    covered = report["coverage"]
    assert covered["forward_only"] is (steps is None)
    assert covered["steps"] == (passes if steps is None else steps)
    assert len(seen.read_text()) in (passes, passes + 1)
