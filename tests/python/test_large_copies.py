"""Large copies to the host of values that nobody computed: masks, sizes, and what is blamed on the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import on_device
from tiers import first

PROBE = Path(__file__).resolve().parents[2] / "python" / "memfit" / "_probe"

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
    assert [line.rpartition("/")[2] for line in lines] == ["script.py:26 in <module>"], problem


# How many of the scores exceed a half, as people count on the host.
COUNTS = {
    "one by one": "sum(bool(each > 0.5) for each in scores[:2000].cpu())",
    "by device": "int((scores.to('cpu').numpy() > 0.5).sum())",
    "copied into": "int((torch.empty_like(scores, device='cpu').copy_(other=scores) > 0.5).sum())",
    "as a list": "sum(each > 0.5 for each in scores.tolist())",
    "forced": "int((scores.numpy(force=True) > 0.5).sum())",
    "sent up again": "int((scores.cpu().to(device) > 0.5).sum())",
    "ranked": "int(scores.argsort().cpu()[0]) + 1",
    "transposed": "int((scores.view(100, 40).T.cpu() > 0.5).sum())",
}
COUNTED = """
    model = torch.nn.Linear(64, 1).to(device)
    scores = model(torch.randn(4000, 64, device=device)).sigmoid().flatten().detach()
    kept = torch.zeros(COUNT, 1000, device=device)
"""


@pytest.mark.parametrize(
    "name",
    first(COUNTS, besides=["one by one", "by device", "copied into", "forced", "ranked", "transposed"]),
)
def test_sizes_from_copied_data_are_unknown(name: str, tmp_path: Path) -> None:
    answer = on_device(COUNTED.replace("COUNT", COUNTS[name]), tmp_path)
    report = answer.report
    assert report["verdict"] == "unknown", (report["problem"], report["fidelity"])
    assert report["problem"]["kind"] == "number-read-back"
    assert "script.py:" in report["problem"]["message"]


HARMLESS = {
    "shown": "print(scores.cpu().mean(), scores.cpu().numpy().max())",
    "without data": "print(scores.to('meta').shape, scores.to(device='meta', dtype=torch.float16).dtype)",
    "known": "x = torch.randn(4000).to(device); kept = torch.zeros(int((x.cpu() > 0).sum()), 9, device=device)",
    "known and transposed": (
        "x = torch.randn(50, 80).to(device); kept = torch.zeros(int((x.T.cpu() > 0).sum()), 9, device=device)"
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_copied_data_without_effect_on_memory_leave_the_verdict(name: str, tmp_path: Path) -> None:
    code = COUNTED.replace("kept = torch.zeros(COUNT, 1000, device=device)", HARMLESS[name])
    report = on_device(code, tmp_path).report
    assert report["verdict"] == "fits", (report["problem"], report["fidelity"])
    effects = [
        each["bytes"] for each in report["fidelity"]["effects"] if "copied to the host" in each["what"]
    ]
    assert effects == ([0] if name == "shown" else [])


def test_other_data_have_the_shape_and_type_of_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROBE))
    from memfit_probe.other_data import instead_of

    for number, classes, least in ((1032, {0, 1, 2}, -8.0), (7, {0, 1}, 0.0)):
        floats = instead_of(torch, torch.zeros(30, 40), number)
        assert floats.shape == (30, 40)
        assert floats.min() >= least
        assert (floats > 0.5).float().mean() > 0.3
        assert (floats < 0.5).float().mean() > 0.3
        halves = instead_of(torch, torch.zeros(40, dtype=torch.float16), number)
        assert halves.dtype == torch.float16
        assert halves.unique().numel() > 9
        array = torch.zeros(9, dtype=torch.int64).numpy()
        assert instead_of(torch, array, number) is array
        assert set(array.tolist()) == classes
        assert instead_of(torch, [[0.0] * 3] * 2, number) != [[0.0] * 3] * 2
    assert (instead_of(torch, torch.zeros(99), 1032) < 0).any()
    varied = instead_of(torch, torch.zeros(999, dtype=torch.int64), 15, is_varied=True)
    assert set(varied.tolist()) == set(range(16))


def test_other_data_of_one_copy_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a type begin with the same data, whichever is the longest, and each has its own."""
    monkeypatch.syspath_prepend(str(PROBE))
    from memfit_probe.other_data import instead_of

    short, long, shorter = (instead_of(torch, torch.zeros(count), 1032) for count in (40, 700_000, 30))
    assert torch.equal(short, long[:40])
    assert torch.equal(shorter, short[:30])
    assert torch.equal(long[:1000], instead_of(torch, torch.zeros(1000), 1032))
    short.fill_(9)
    long.fill_(9)
    assert torch.equal(shorter, instead_of(torch, torch.zeros(30), 1032))
    in_columns = instead_of(torch, torch.zeros(6, 5).t(), 1032)
    assert torch.equal(in_columns.flatten(), shorter)
