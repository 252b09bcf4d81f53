"""For random capacities: reports agree with whether the training fits in the capacity."""

from __future__ import annotations

import random

import pytest
from runs import MIB, completed, run

WORKLOAD = "accumulate.py --batch-size 64 --accumulate 2 --image-size 160"


def unconstrained():
    return completed(WORKLOAD, gpu="a100-80gb").report


def at(capacity: int):
    return run(WORKLOAD, gpu="a100-80gb", memory=capacity // MIB * MIB)


@pytest.mark.parametrize("draw", range(3))
def test_fits_at_every_capacity_from_the_upper_peak_on(draw):
    upper = unconstrained()["peak"]["device_upper"]
    capacity = upper + random.Random(draw).randrange(MIB, upper) if draw else upper + MIB
    answer = at(capacity)
    assert (answer.status, answer.report["verdict"]) == (0, "fits")
    assert answer.peak == unconstrained()["peak"], "more room changes nothing"


@pytest.mark.parametrize("draw", range(3))
def test_out_of_memory_below_what_is_live(draw):
    report = unconstrained()
    outside = report["outside"]
    floor = report["peak"]["allocated"] + outside["context"] + outside["libraries"]
    capacity = floor - MIB if draw == 0 else random.Random(draw).randrange(floor // 2, floor)
    answer = at(capacity)
    assert (answer.status, answer.report["verdict"]) == (1, "oom")
    oom = answer.report["oom"]
    assert not oom["caught"]
    assert oom["phase"] in ("forward", "backward", "optimizer", "other")
    if "CUDA out of memory" in oom["message"]:
        assert oom["requested"] > 0
        assert any("accumulate.py" in frame for frame in oom["stack"])
    else:
        # Without memory for a library's handle, the library raises its own error.
        assert "_STATUS_" in oom["message"]


def test_between_the_two_what_really_happens_decides():
    report = unconstrained()
    outside = report["outside"]
    floor = report["peak"]["allocated"] + outside["context"] + outside["libraries"]
    answer = at((floor + report["peak"]["device_upper"]) // 2)
    verdict = answer.report["verdict"]
    assert answer.status == {"fits": 0, "oom": 1}[verdict]
    assert answer.peak["device"] <= answer.report["device"]["capacity"]


def test_a_smaller_card_of_the_catalogue_fails_where_a_larger_one_does_not():
    command = "resnet.py --arch resnet50 --batch-size 128 --steps 3"
    assert completed(command, gpu="rtx-4090").report["headroom"] > 0
    small = run(command, gpu="rtx-2060")
    assert (small.status, small.report["verdict"]) == (1, "oom")
    assert small.report["oom"]["module"], "the module where it struck is named"
