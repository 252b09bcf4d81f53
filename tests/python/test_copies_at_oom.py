"""Copies of the parameters in runs that are out of memory before the first backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import MIB
from support import on_device

AVERAGED = """
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(16)))
    named = dict(model.named_parameters())
    averages = {averages}
    model.to(device)
    {moved}
    model(torch.randn(2 ** 20, 1024, device=device)).sum().backward()
"""
COPIES = {
    "a list that is moved to the device": (
        "[each.detach().clone() for each in named.values()]",
        "averages = [each.to(device) for each in averages]",
    ),
    "a list": ("None", "averages = [each.detach().clone() for each in model.parameters()]"),
    "a dictionary": (
        "{name: each.detach().clone().to(device) for name, each in named.items()}",
        "",
    ),
}
WEIGHTS = 64 * MIB


@pytest.mark.parametrize("kind", COPIES)
def test_copies_are_parameters_when_the_first_forward_pass_runs_out_of_memory(
    kind: str, tmp_path: Path
) -> None:
    averages, moved = COPIES[kind]
    code = AVERAGED.replace("{averages}", averages).replace("{moved}", moved)
    answer = on_device(code, tmp_path)
    report = answer.report
    assert (report["verdict"], report["oom"]["phase"]) == ("oom", "forward"), answer.output
    categories = report["at_peak"]["by_category"]
    assert abs(categories["parameters"] - 2 * WEIGHTS) < 2 * MIB, categories
    assert categories["unknown"] < MIB
