"""Finds in a script's unmodified run what it does in each iteration besides its step, since a divided batch
would do that once per micro-batch.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_planned import HEAD, TAIL, alike, run_cases

# What a loop does in each iteration besides its step, with why parts of its batches are not known to train as
# the whole; nothing where a plan holds it back, or where it would do the same.
EFFECTS = {
    "nothing else": ("", "", "", ""),
    "clips and schedules": (
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)",
        "nn.utils.clip_grad_norm_(net.parameters(), 0.1)",
        "scheduler.step()",
        "",
    ),
    "schedules one after the other": (
        """each = torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, each, [2])""",
        "",
        "scheduler.step()",
        "",
    ),
    "saves checkpoints": (
        "import io",
        "",
        """torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
        torch.save(net, io.BytesIO())""",
        "",
    ),
    "PyTorch's own average": (
        "average = torch.optim.swa_utils.AveragedModel(net)",
        "",
        "average.update_parameters(net)",
        "",
    ),
    "an average in memory": (
        "import copy; average = copy.deepcopy(net)",
        "",
        """with torch.no_grad():
            for one, other in zip(average.parameters(), net.parameters()):
                one.mul_(0.9).add_(other, alpha=0.1)""",
        "average of weights",
    ),
    "an average by one call": (
        "average = [each.detach().clone() for each in net.parameters()]",
        "",
        "torch._foreach_lerp_(average, [each.data for each in net.parameters()], 0.1)",
        "average of weights",
    ),
    "an average in a dictionary": (
        "average = {name: each.detach().clone() for name, each in net.named_parameters()}",
        "",
        """for name, each in net.named_parameters():
            average[name] = 0.9 * average[name] + 0.1 * each.detach()""",
        "average of weights",
    ),
    "an average that is a module": (
        """class Average(nn.Module):
    def __init__(self):
        super().__init__()
        for name, each in net.named_parameters():
            self.register_buffer(name.replace(".", "_"), each.detach().clone())
    def forward(self, model):
        for name, each in model.named_parameters():
            getattr(self, name.replace(".", "_")).lerp_(each.data, 0.1)
average = Average()""",
        "",
        "average(net)",
        "average of weights",
    ),
    "a target that is copied": (
        "import copy; target = copy.deepcopy(net)",
        "",
        "target.load_state_dict(net.state_dict())",
        "average of weights",
    ),
    "a momentum encoder before the step": (
        "import copy; encoder = copy.deepcopy(net)",
        """with torch.no_grad():
            for one, other in zip(encoder.parameters(), net.parameters()):
                one.copy_(0.9 * one + 0.1 * other)""",
        "",
        "average of weights",
    ),
    "weights that are clipped": (
        "",
        "",
        """for each in net.parameters():
            each.data.clamp_(-0.1, 0.1)""",
        "changes parameters",
    ),
    "decay of its own": (
        "",
        "",
        """with torch.no_grad():
            torch._foreach_mul_(list(net.parameters()), 0.99)""",
        "changes parameters",
    ),
    "gradients that are divided": (
        "",
        """for each in net.parameters():
            each.grad.div_(2)""",
        "",
        "changes gradients",
    ),
    "noise on gradients": (
        "",
        """for each in net.parameters():
            each.grad = each.grad + 0.01 * torch.randn_like(each)""",
        "",
        "changes gradients",
    ),
    "a clipping of its own": (
        "",
        """size = torch.stack([each.grad.norm() for each in net.parameters()]).norm()
        torch._foreach_mul_([each.grad for each in net.parameters()], (0.1 / (size + 1e-6)).clamp(max=1.0))""",
        "",
        "changes gradients",
    ),
    "hooks on gradients": (
        "[each.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1)) for each in net.parameters()]",
        "",
        "",
        "hooks on parameters",
    ),
    "a schedule of its own": (
        "round = 0",
        "",
        """round += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + round)""",
        "sets the optimizer's `lr`",
    ),
    "a schedule before the step": (
        "round = 0",
        """round += 1
        optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 / round""",
        "",
        "sets the optimizer's `momentum`",
    ),
    "the same settings again": ("", 'optimizer.param_groups[0]["lr"] = 0.1', "", ""),
    "norms and losses that are kept": (
        "norms, total = [], torch.zeros(())",
        "norms.append(torch.stack([each.grad.norm() for each in net.parameters()]).norm())",
        "norms.append(net.one.weight.detach().norm()); total += norms[-1]",
        "",
    ),
    "gradients that are zeroed in place": ("", "", "optimizer.zero_grad(set_to_none=False)", ""),
}
LOOP_WITH_EFFECTS = """
BEFORE
for epoch in range(2):
    for x, y in loader:
        F.mse_loss(net(x), y).backward()
        BETWEEN
        optimizer.step()
        AFTER
        optimizer.zero_grad()
"""
EACH_EPOCH = "settings of each epoch"
BY_EPOCH = """
for epoch in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
"""


def of_effect(before: str, between: str, after: str) -> dict[str, Any]:
    """Follow a script that does this in each iteration, without a plan."""
    loop = LOOP_WITH_EFFECTS.replace("BEFORE", before).replace("BETWEEN", between or "pass")
    script = HEAD + loop.replace("AFTER", after or "pass") + TAIL.replace("MODELS", "[net]")
    return {"script": script, "planned": script, "plan": {"measure": True, "levers": []}}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {name: of_effect(*lines[:3]) for name, lines in EFFECTS.items()}
    script = HEAD + BY_EPOCH + TAIL.replace("MODELS", "[net]")
    cases[EACH_EPOCH] = {"script": script, "planned": script, "plan": {"measure": True, "levers": []}}
    return run_cases(cases, tmp_path_factory.mktemp("effects"))


@pytest.mark.parametrize("name", [*EFFECTS, EACH_EPOCH])
def test_effects_of_each_iteration_are_no_proof(answers: dict[str, Any], name: str) -> None:
    plain, planned = answers["plain"][name], answers["planned"][name]
    assert isinstance(planned, list), planned
    learnt, said = planned
    assert alike(learnt, plain), said
    notes = [each["text"] for each in said if each["kind"] == "note"]
    assert not any("failed" in note for note in notes), notes
    training = next(each for each in said if each["kind"] == "training")
    why = EFFECTS[name][3] if name in EFFECTS else ""
    assert (why in training["undivided"]) if why else not training["undivided"], training["undivided"]
