"""Sizes that are small where what the GPU computes is large: no assumed value may stand for all of them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from support import Starter, on_device, through_memfit
from tiers import first

COUNT = 400
MADE = f"""
    import math
    count = {COUNT}
    x = torch.randn(count, device=device)
    mask = x > 0
    draw = torch.rand(1, device=device)
    {{}}
    kept = torch.zeros(max(int(size), 0), 64 << 20, dtype=torch.uint8, device=device)
"""
# Each takes some of 25 GiB on a real GPU, and none of it where the assumed value is at its upper bound.
FALLING = {
    "a count": "size = count - mask.sum().item()",
    "a negative count": "size = -mask.sum().item() + count",
    "a product": "size = mask.sum().item() * -1 + count",
    "a difference": "size = (~mask).sum().item() + 0 - mask.sum().item() + count - 400",
    "a remainder": "size = 2 * ((mask.sum().item() + 1) % (count + 1))",
    "a quotient": "size = count * 400 // (1 + 400 * mask.sum().item())",
    "a share": "size = int(count * (1 - mask.sum().item() / count))",
    "of math": "size = math.floor(400 * math.exp(-mask.sum().item()))",
    "an integer": "size = count - int(mask.sum())",
    "on the GPU": "size = (count - mask.sum()).item()",
    "a share on the GPU": "size = (count * (1 - mask.sum() / count)).item()",
    "a list": "size = count - sum(torch.bincount(mask.long(), minlength=2).tolist()[1:])",
    "rows": "size = count - len(mask.nonzero())",
    "a shape": "size = count - x[mask].shape[0]",
    "elements": "size = count - x.masked_select(mask).numel()",
    "groups": "size = count - len((x * 9).long().unique())",
    "a large mask": "size = count - int((torch.randn(9000, device=device) > 0).cpu().sum() * count // 9000)",
    "a random number": "size = count - int(draw.item() * count)",
    "a random integer": "size = count - torch.randint(0, count, (1,), device=device).item()",
    "a random number as a condition": "size = count if draw.item() < 0.5 else 0",
}


EACH_TIME = ("a count", "on the GPU", "a shape", "a random number")


@pytest.mark.parametrize("how", first(FALLING, besides=[how for how in FALLING if how not in EACH_TIME]))
def test_what_falls_where_an_assumed_value_rises_does_not_fit_with_certainty(
    how: str, tmp_path: Path
) -> None:
    report = on_device(MADE.format(FALLING[how]), tmp_path, "t4").report
    assert report["verdict"] == "unknown", (report["problem"], report["fidelity"])
    assert "script.py:" in report["problem"]["message"], report["problem"]


# The values are assumed, and nothing but text depends on them.
TOLD = {
    "an accuracy": "print(mask.sum().item() / count, f'{100 * mask.sum().item() / count:.1f} %')",
    "errors": "print(count - mask.sum().item())",
    "a share on the GPU": "print((1 - mask.sum() / count).item())",
    "random numbers": "print(draw.item(), torch.randint(9, (1,), device=device).item())",
}


@pytest.mark.parametrize("how", TOLD)
def test_what_is_only_told_fits(how: str, tmp_path: Path) -> None:
    report = on_device(MADE.format(f"{TOLD[how]}; size = 1"), tmp_path, "t4").report
    assert report["verdict"] == "fits", (report["problem"], report["fidelity"])


LOWER = functools.partial(through_memfit, options=("--sizes", "lower"))


def test_a_random_size_has_an_interval(tmp_path: Path) -> None:
    code = MADE.format("size = torch.randint(10, 40, (1,), device=device).item()")
    upper = on_device(code, tmp_path, "t4").report
    lower = on_device(code, tmp_path, "t4", LOWER).report
    assert upper["verdict"] == lower["verdict"] == "fits"
    assert upper["peak"]["allocated"] - lower["peak"]["allocated"] == 29 * (64 << 20)


DRAWN = """
    found = {}
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        uniform = torch.empty(3, device=device, dtype=kind).uniform_(-2, 6).tolist()
        found[str(kind)] = [*torch.rand(2, device=device, dtype=kind).tolist(), *uniform]
    answer(found=found, whole=torch.randint(5, 9, (2,), device=device).tolist())
"""


@pytest.mark.parametrize(("start", "share", "whole"), [(through_memfit, 255 / 256, 8), (LOWER, 1 / 256, 5)])
def test_random_numbers_are_near_an_end_of_their_range(
    start: Starter, share: float, whole: int, tmp_path: Path
) -> None:
    said = on_device(DRAWN, tmp_path, "t4", start).said
    for kind, numbers in said["found"].items():
        assert numbers == [share, share, *[8 * share - 2] * 3], kind
    assert said["whole"] == [whole, whole]
