"""Fixes keep the training: scripts run as written and as fixed by `memfit check`, in float64, and all
gradients that an optimizer uses are equal.
"""

from __future__ import annotations

import contextlib
import io
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import memfit
from torch.optim.optimizer import register_optimizer_step_pre_hook

BEGIN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
{anomaly}
data = [(torch.randint(0, 255, (4,), dtype=torch.uint8), torch.randn(2)) for _ in range(24)]
loader = DataLoader(data, batch_size=4{pinned})
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
critic = nn.Linear(2, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
running, losses, outputs, best = 0, [], [], None
"""

# The statements of a round; each may be there, twice, or not at all.
BATCH = [
    "x = x.float().cuda() / 255",
    "x = x.cuda(non_blocking=True).float() / 255",
    "x = x.float() / 255.0",
]
FORWARD = [
    "out = model(x)\nloss = criterion(out, y)",
    "with torch.cuda.amp.autocast(enabled=False):\n    out = model(x)\n    loss = criterion(out, y)",
    "out = model(x)\nloss = criterion(out, y) + 0.1 * critic(out).mean()",
    "entropy = 0\nfor _ in range(2):\n    out = model(x)\n    entropy += out.tanh().mean()\n"
    "loss = criterion(out, y) - 0.01 * entropy",
]
CLEAR = [
    "optimizer.zero_grad()",
    "optimizer.zero_grad(set_to_none=False)",
    "model.zero_grad()",
    "if i % 2 == 0:\n    optimizer.zero_grad()",
    "pass",
]
BACKWARD = ["loss.backward()", "loss.backward(retain_graph=True)", "(loss / 2).backward()"]
STEP = [
    "optimizer.step()",
    "if i % 2 == 0:\n    optimizer.step()",
    "if (i + 1) % 2 == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
    "optimizer.step()\nif i % 2 == 0:\n    critic_optimizer.zero_grad()\n    critic(out.detach()).mean().backward()\n    critic_optimizer.step()",
]
AROUND = [
    "running += loss",
    "losses.append(loss)",
    "outputs.append(out)",
    "outputs.append(out[:1].detach())",
    "torch.cuda.empty_cache()",
    "best = model.state_dict()",
    "running = running + loss / 4",
    "model.eval()\nguess = model(x)\nmodel.train()",
]


def indented(text: str, by: int) -> str:
    return "".join(" " * by + line + "\n" for line in text.splitlines())


def training(seed: int) -> str:
    pick = random.Random(seed)
    begin = BEGIN.format(
        anomaly=pick.choice(["", "torch.autograd.set_detect_anomaly(True)"]),
        pinned=pick.choice(["", ", pin_memory=False", ", num_workers=0"]),
        optimizer=pick.choice(["SGD", "Adam", "AdamW"]),
    )
    parts = [pick.choice(kinds) for kinds in (BATCH, FORWARD)]
    middle = [pick.choice(CLEAR), pick.choice(BACKWARD), pick.choice(STEP)]
    if pick.random() < 0.3:
        middle.append(pick.choice(CLEAR))
    if pick.random() < 0.2:
        pick.shuffle(middle)
    for _ in range(pick.randrange(4)):
        middle.insert(pick.randrange(len(middle) + 1), pick.choice(AROUND))
    body = "".join(indented(part, 8) for part in [*parts, *middle])
    evaluation = pick.choice(
        [
            "",
            "    model.eval()\n    correct = 0\n    for x, y in loader:\n        out = model(x.float())\n"
            "        correct += (out > 0).sum().item()\n    model.train()\n",
        ]
    )
    return (
        f"{begin}for epoch in range(2):\n    for i, (x, y) in enumerate(loader):\n"
        f"        y = y.double()\n{body}{evaluation}"
    )


def gradients(text: str) -> list[list[Any]] | str:
    """The gradients that each optimizer step sees, and the weights in the end; or how the program fails."""
    seen: list[list[Any]] = []

    def look(optimizer: Any, *_: Any) -> None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        seen.append([None if grad is None else grad.detach().clone() for grad in grads])

    hook = register_optimizer_step_pre_hook(look)
    torch.set_default_dtype(torch.float64)
    names: dict[str, Any] = {}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(compile(text.replace(".float()", ".double()"), "training", "exec"), names)
    except RuntimeError as error:
        return str(error).split("\n")[0]
    finally:
        hook.remove()
        torch.set_default_dtype(torch.float32)
        torch.autograd.set_detect_anomaly(False)
    seen.append([weight.detach() for weight in names["model"].parameters()])
    return seen


def equal(one: list[list[Any]] | str, other: list[list[Any]] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for before, after in zip(one, other, strict=True)
        for a, b in zip(before, after, strict=True)
    )


def test_no_fix_changes_a_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    texts = {f"training{seed:03}.py": training(seed) for seed in range(150)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    command = [memfit(), "--isolated", "check", ".", "--fix", "--unsafe-fixes", "--extend-select", "all"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "fixed" in done.stdout, done.stdout + done.stderr
    changed = 0
    for name, text in texts.items():
        after = (tmp_path / name).read_text()
        if after == text:
            continue
        changed += 1
        before = gradients(text)
        # A program that fails may run once it is mended.
        if isinstance(before, str):
            continue
        assert equal(before, gradients(after)), f"{text}\n-----\n{after}"
    assert changed > 80, changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        optimizer.zero_grad()\n", ""),
        ("loss.backward()", "(loss / 2).backward()"),
    ],
)
def test_a_changed_gradient_would_be_seen(before: str, after: str) -> None:
    text = BEGIN.format(anomaly="", pinned="", optimizer="SGD") + (
        "for i, (x, y) in enumerate(loader):\n        optimizer.zero_grad()\n"
        "        loss = criterion(model(x.float()), y)\n        loss.backward()\n        optimizer.step()\n"
    )
    assert equal(gradients(text), gradients(text))
    assert not equal(gradients(text), gradients(text.replace(before, after)))


if __name__ == "__main__":
    print(training(int(sys.argv[1])))
