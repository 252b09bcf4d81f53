"""A plan carried out from outside leaves the training what it is: loops of many kinds learn what they learn
with whole batches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

HEAD = """
first_use = globals().get("first_use", lambda: None)
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self, inside=4, outside=2):
        super().__init__()
        self.one, self.two = nn.Linear(inside, 8), nn.Linear(8, outside)
    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))

data = TensorDataset(torch.randn(22, 4), torch.randn(22, 2))
loader = DataLoader(data, batch_size=6)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
"""
TAIL = """
LEARNT = [p.detach().flatten().tolist() for each in MODELS for p in each.parameters()]
"""

PLAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
"""

# Each is a loop, and the models that it trains.
LOOPS: dict[str, tuple[str, str]] = {
    "cleared first": (PLAIN, "net"),
    "cleared last, clipped, scheduled": (
        """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
for epoch in range(2):
    for x, y in loader:
        F.mse_loss(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.step()
        net.zero_grad()
        scheduler.step()
""",
        "net",
    ),
    "piece by piece": (
        """
from memfit_levers.pieces import take_over
take_over(optimizer, "pure-bf16")
"""
        + PLAIN,
        "net",
    ),
    "two losses": (
        """
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(net(x), y).backward()
    (0.1 * net(x).pow(2).mean()).backward()
    optimizer.step()
""",
        "net",
    ),
    "its own accumulation": (
        """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        (F.mse_loss(net(x), y) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
""",
        "net",
    ),
    "a closure": (
        """
for x, y in loader:
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        "net",
    ),
    "two optimizers that step together": (
        """
first = torch.optim.SGD(net.one.parameters(), lr=0.1)
second = torch.optim.Adam(net.two.parameters(), lr=0.01)
for x, y in loader:
    for each in (first, second):
        each.zero_grad()
    F.mse_loss(net(x), y).backward()
    nn.utils.clip_grad_norm_(net.one.parameters(), 0.1)
    first.step()
    nn.utils.clip_grad_norm_(net.two.parameters(), 0.1)
    second.step()
""",
        "net",
    ),
    "each cleared after its own step": (
        """
first = torch.optim.SGD(net.one.parameters(), lr=0.1)
second = torch.optim.Adam(net.two.parameters(), lr=0.01)
for x, y in loader:
    F.mse_loss(net(x), y).backward()
    first.step(), first.zero_grad()
    second.step(), second.zero_grad()
""",
        "net",
    ),
    "a teacher that is called first": (
        """
teacher = Net().eval()
for epoch in range(2):
    for x, y in loader:
        with torch.no_grad():
            aim = teacher(x)
        optimizer.zero_grad()
        F.mse_loss(net(x), aim).backward()
        optimizer.step()
""",
        "net",
    ),
    "a frozen encoder that nobody told": (
        """
encoder = nn.Linear(4, 4).requires_grad_(False)
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(net(encoder(x)), y).backward()
    optimizer.step()
""",
        "net",
    ),
    "forces and a penalty": (
        """
energy = Net(4, 1)
optimizer = torch.optim.SGD([*energy.parameters(), *net.parameters()], lr=0.05)
for x, y in loader:
    x.requires_grad_(True)
    force, = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
    optimizer.zero_grad()
    (F.mse_loss(force[:, :2], y) + F.mse_loss(net(x), y)).backward()
    optimizer.step()
""",
        "energy, net",
    ),
    "one batch ahead": (
        """
for epoch in range(2):
    batches = iter(loader)
    ahead = next(batches)
    while ahead is not None:
        x, y = ahead
        ahead = next(batches, None)
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
""",
        "net",
    ),
    "looked at before it begins": (
        """
print(next(iter(loader))[0].shape)
"""
        + PLAIN,
        "net",
    ),
    "stopped early": (
        """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        if net.training and i == STOP:
            break
""",
        "net",
    ),
    "evaluated between": (
        """
others = DataLoader(data, batch_size=5)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(sum(F.mse_loss(net(x), y) for x, y in others))
    net.train()
""",
        "net",
    ),
    "two towers": (
        """
other = Net()
optimizer = torch.optim.Adam([*net.parameters(), *other.parameters()], lr=0.01)
for x, y in loader:
    optimizer.zero_grad()
    (net(x) - other(x.flip(1)) - y).pow(2).mean().backward()
    optimizer.step()
""",
        "net, other",
    ),
    "processes that stay, stopped early": (
        """
loader = DataLoader(data, batch_size=6, num_workers=2, persistent_workers=True)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        if i == STOP:
            break
""",
        "net",
    ),
    "two loaders side by side": (
        """
more = DataLoader(data, batch_size=6)
for (x, y), (z, _) in zip(loader, more):
    optimizer.zero_grad()
    (F.mse_loss(net(x), y) + 0.1 * net(z).pow(2).mean()).backward()
    optimizer.step()
""",
        "net",
    ),
    "an optimizer around another": (
        """
class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)
    def step(self, closure=None):
        return self.inner.step()
    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()
optimizer = Around(optimizer)
"""
        + PLAIN,
        "net",
    ),
    "batches of its own making": (
        """
batch_size = 6
first_use()
for step in range(4 * 6 // batch_size):
    first = step * batch_size % 18
    x, y = data[range(first, first + batch_size)]
    optimizer.zero_grad()
    F.mse_loss(net(x), y).backward()
    optimizer.step()
""",
        "net",
    ),
    "schedulers with a step of their own, and an average": (
        """
each = torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, each, [2])
average = torch.optim.swa_utils.AveragedModel(net)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(net)
""",
        "net, average.module",
    ),
    "a restarted schedule": (
        """
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        scheduler.step()
""",
        "net",
    ),
    "a scaler that does nothing": (
        """
scaler = torch.amp.GradScaler("cuda", enabled=False)
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(net(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_value_(net.parameters(), 0.05)
    scaler.step(optimizer)
    scaler.update()
""",
        "net",
    ),
}


# Losses of outputs `z` of a batch for `y`, with why parts of it are not known to train as the whole; nothing
# where they are.
LOSSES = {
    "a mean": ("F.mse_loss(z, y)", ""),
    "classes": ("F.cross_entropy(z, y.argmax(1))", ""),
    "a sum of means": (
        "F.mse_loss(z, y) + 0.1 * F.l1_loss(z, y) + 0.01 * sum(w.pow(2).sum() for w in net.parameters())",
        "",
    ),
    "each sample's own norm": ("(F.normalize(z, dim=1) - F.normalize(y, dim=1)).pow(2).mean()", ""),
    "noise for each sample": ("(z + torch.randn_like(z) - y).pow(2).mean()", ""),
    "a mean over a mask": (
        "((z - y).pow(2).sum(1) * (y[:, 0] > 0)).sum() / (y[:, 0] > 0).sum()",
        "mean over a varying number of elements",
    ),
    "a selection": ("(z - y)[y[:, 0] > 0].pow(2).mean()", "`index` combines the samples"),
    "labels left out": (
        "F.cross_entropy(z, y.argmax(1).masked_fill(y[:, 0] > 0, -100))",
        "ignores some labels",
    ),
    "weighted classes": (
        "F.cross_entropy(z, y.argmax(1), weight=torch.rand(z.size(1)))",
        "weights classes",
    ),
    "weights by their sum": (
        "(y[:, 0].abs() / y[:, 0].abs().sum() * (z - y).pow(2).sum(1)).sum()",
        "combines a value",
    ),
    "weights by place": ("((z - y).pow(2).mean(1) * torch.linspace(0, 1, len(z))).mean()", "not theirs"),
    "a sum": ("(z - y).pow(2).sum()", "sum over the samples"),
    "a root": ("(z - y).pow(2).mean().sqrt()", "`sqrt`"),
    "a number that is read": ("F.mse_loss(z, y) / y.abs().max().item()", "is read"),
    "a list that is read": ("F.mse_loss(z, y) / max(y[:, 0].tolist())", "is read"),
    "times the samples": ("F.mse_loss(z, y) * len(z)", "may be the number of samples"),
    "contrastive": (
        "F.cross_entropy(F.normalize(z, dim=1) @ F.normalize(net(-x), dim=1).T, torch.arange(len(z)))",
        "`mm` combines the samples",
    ),
    "of all pairs": ("torch.cdist(z, z).mean()", "is not known to keep samples separate"),
    "less the batch's mean": ("(z - z.mean(0)).pow(2).mean()", "combines a value of the whole batch"),
    "a softmax over the batch": ("(z[:, :1].softmax(0) * y[:, :1]).sum()", "`_softmax` combines the samples"),
    "mixed with others": ("F.mse_loss(z.roll(1, 0), y)", "`roll`"),
    "the largest losses": ("(z - y).pow(2).mean(1).topk(2).values.mean()", "`topk` combines the samples"),
}


def of_loss(loss: str) -> dict[str, Any]:
    """Follow a script with this loss, without a plan."""
    loop = PLAIN.replace("F.mse_loss(net(x), y)", f"({loss})").replace(
        "        optimizer.zero_grad()", "        optimizer.zero_grad()\n        z = net(x)"
    )
    script = HEAD + loop + TAIL.replace("MODELS", "[net]")
    return {"script": script, "planned": script, "plan": {"measure": True, "levers": []}}


def case(name: str, loop: str, models: str) -> dict[str, Any]:
    # A loop that counts its rounds sees more of them.
    script, counted = (
        HEAD + loop.replace("STOP", stop) + TAIL.replace("MODELS", f"[{models}]") for stop in ("1", "3")
    )
    plan: dict[str, Any] = {"micro_batch": 3, "levers": []}
    if name == "its own accumulation":
        plan["own_accumulation"] = 2
    if name == "batches of its own making":
        plan |= {"batch": 6, "by_name": True}
    return {"script": script, "planned": counted, "plan": plan}


def run_cases(cases: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run all scripts without and with their plans, and collect the facts."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    command = [sys.executable, str(HERE / "planned_training.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {name: case(name, *loop) for name, loop in LOOPS.items()}
    cases |= {f"loss: {name}": of_loss(loss) for name, (loss, _) in LOSSES.items()}
    return run_cases(cases, tmp_path_factory.mktemp("planned"))


def alike(ours: list[Any], plain: list[Any]) -> bool:
    pairs = [(a, b) for one, two in zip(ours, plain, strict=True) for a, b in zip(one, two, strict=True)]
    return all(abs(a - b) <= 1e-5 + 1e-4 * abs(b) for a, b in pairs)


@pytest.mark.parametrize("name", LOOPS)
def test_a_divided_batch_trains_like_the_whole_batch(answers: dict[str, Any], name: str) -> None:
    plain, planned = answers["plain"][name], answers["planned"][name]
    assert isinstance(plain, list), plain
    assert isinstance(planned, list), planned
    learnt, said = planned
    assert alike(learnt, plain), said
    notes = [each["text"] for each in said if each["kind"] == "note"]
    assert not any("failed" in note for note in notes), notes
    assert not [each for each in said if each["kind"] == "refused"]
    training = next(each for each in said if each["kind"] == "training")
    assert training["batch"] == (3 if name == "batches of its own making" else 6)
    assert training["seen"] == 3


@pytest.mark.parametrize("name", LOSSES)
def test_division_counts_as_exact_only_if_verified(answers: dict[str, Any], name: str) -> None:
    plain, planned = answers["plain"][f"loss: {name}"], answers["planned"][f"loss: {name}"]
    assert isinstance(planned, list), planned
    learnt, said = planned
    # The probe changes nothing.
    assert alike(learnt, plain), said
    notes = [each["text"] for each in said if each["kind"] == "note"]
    assert not any("failed" in note for note in notes), notes
    training = next(each for each in said if each["kind"] == "training")
    why = LOSSES[name][1]
    assert (why in training["undivided"]) if why else not training["undivided"], training["undivided"]
