"""CUDA graphs."""

from __future__ import annotations

from runs import completed
from runs import run as dry_run


def test_a_replay_is_a_step_where_the_optimizer_is_inside():
    report = completed("graphed.py --what step", gpu="t4", options="--steps 5").report
    # Two before the capture, none in it, and three replays.
    assert (report["steps"], report["coverage"]["steps"]) == (5, 5)
    assert dry_run("graphed.py --what step", gpu="t4", options="--steps 0").report["steps"] == 8


def test_graphed_passes_train():
    report = completed("graphed.py --what passes", gpu="t4", options="--steps 3").report
    assert report["steps"] == 3
    assert report["fidelity"]["unmodelled"] == []
