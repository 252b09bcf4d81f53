"""Checks before an error hold, as they do in a correct script."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support import on_device, through_memfit

pytest.importorskip("torch")

PRELUDE = """
    from torch.distributions import Beta, Categorical, Normal

    def passes(values):
        return bool(values.all())

    def positive(values):
        return passes(values > 0)

    net = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.Adam(net.parameters())

    def step(x):
        {step}

    # A loop: Python makes a call that runs often in another way.
    for _ in range(12):
        x = torch.rand(1, 4, device=device)
        loss = step(x)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
"""
# A sample goes to the host and comes back, as in a buffer of experience.
CHECKS = {
    "a parameter of a distribution of one element": """
        alpha, beta = torch.nn.functional.softplus(net(x)).chunk(2, -1)
        return Beta(alpha + 1, beta + 1).entropy()
    """,
    "a sample that was on the host": """
        shape = torch.nn.functional.softplus(net(x)) + 1
        policy = Beta(shape[:, :1].expand(64, 1), shape[:, 1:].expand(64, 1))
        action = torch.tensor([[policy.sample()[0].cpu().numpy()[0]]] * 64, device=device).view(64, 1)
        return policy.log_prob(action)
    """,
    "a condition before a `raise`": """
        out = net(x)
        if torch.isnan(out).any() or not (out < 9).all():
            print("diverged")
            raise ValueError(f"diverged: {out}")
        return out
    """,
    "a condition that a function returns": """
        out = net(x)[:, :1]
        if not positive(out):
            raise RuntimeError("not positive")
        return out
    """,
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_before_an_error_holds(check: str, tmp_path: Path) -> None:
    code = PRELUDE.replace("{step}", CHECKS[check].strip())
    answer = on_device(code, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output


CHOICES = """
    net = torch.nn.Linear(4, 1).to(device)
    taken = []
    for _ in range(2):
        out = net(torch.rand(1, 4, device=device))
        try:
            if not out > 0:
                raise StopIteration
            taken.append("positive")
        except StopIteration:
            taken.append("other")
        taken.append("large" if out > 0 else "small")
    answer(taken=taken)
"""


def test_a_condition_before_anything_else_is_assumed_as_before(tmp_path: Path) -> None:
    answer = on_device(CHOICES, tmp_path)
    assert set(answer.said["taken"]) == {"other", "small"}, answer.output


ANY = """
    x = torch.randn(50_000, device=device)
    expert = x.long()
    done = []
    for index in range(3):
        if (expert == index).any():
            done.append("works on")
        if not (expert == index).any():
            continue
        if torch.any(expert == index).item() and index < 2:
            done.append("continues")
        if not (x > index).any():
            pass
        else:
            done.append("else")
    for _ in range(3):
        if (x > 4).any():
            break
        done.append("goes on")
    while (x > 4).any():
        done.append("repeats")
    while True:
        if (expert == 1).any():
            done.append("leaves")
            break
        if len(done) > 20:
            break
        done.append("waits")
    answer(done=done)
"""


def test_any_of_an_unknown_mask_is_true_where_the_script_then_does_more(tmp_path: Path) -> None:
    # In a mixture of experts, `if mask.any():` skips an expert without tokens.
    answer = on_device(ANY, tmp_path, start=partial(through_memfit, options=("--sizes", "1")))
    done = answer.said["done"]
    counts = {each: done.count(each) for each in ("works on", "continues", "else", "goes on", "repeats")}
    assert counts == {"works on": 3, "continues": 2, "else": 3, "goes on": 3, "repeats": 0}, answer.output
