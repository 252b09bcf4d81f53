"""Large copies to the host of values that nobody computed: masks, and what is blamed on the others."""

from __future__ import annotations

from pathlib import Path

from support import on_device

COPIED = """
    rays = torch.rand(20_000, 3)
    inside = torch.cat([(each.to(device).sum(-1) > 1).cpu() for each in rays.split(10_000)])
    kept = rays[inside]
    whole = torch.zeros(20_000, dtype=torch.bool, device=device).cpu()
    order = torch.rand(20_000, device=device).argsort().cpu()
    if FAILS:
        torch.cat([rays[order[:100]] for _ in range(int(order.sum()))])
    answer(kept=list(kept.shape), known=int(whole.sum()))
"""


def test_a_large_mask_that_is_copied_to_the_host_keeps_all(tmp_path: Path) -> None:
    answer = on_device(COPIED.replace("FAILS", "False"), tmp_path)
    assert answer.said == {"kept": [20_000, 3], "known": 0}, answer.output


def test_failures_from_large_copies_of_unknown_values_are_blamed_on_them(tmp_path: Path) -> None:
    answer = on_device(COPIED.replace("FAILS", "True"), tmp_path)
    problem = answer.report["problem"]
    assert problem["kind"] == "exception-after-change", problem
    assert "expected a non-empty list" in problem["message"], problem
    lines = problem["message"].partition("(at ")[2].partition(")")[0].split(", ")
    assert [line.rpartition("/")[2] for line in lines] == [
        "script.py:23 in <listcomp>",
        "script.py:26 in <module>",
    ], problem
