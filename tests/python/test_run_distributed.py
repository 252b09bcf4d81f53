"""Scripts that torchrun starts: each process has a card of its own, and each is in the report."""

from __future__ import annotations

import sys

import pytest
from runs import GIB, completed, run

TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2 distributed.py"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_train(strategy):
    answer = completed(f"{TORCHRUN} --strategy {strategy}", gpu="a100-80gb:2")
    report = answer.report
    assert report["device"]["count"] == 2
    assert report["steps"] == 3
    first, second = report["ranks"]
    assert first["allocated"] == pytest.approx(second["allocated"], rel=0.02)
    assert report["outside"]["communication"] > 0, "NCCL's buffers lie outside the allocator"


def test_sharding_saves_what_the_other_rank_keeps():
    sizes = "--width 4096 --layers 4 --batch-size 16"
    replicated, sharded = (
        completed(f"{TORCHRUN} {sizes} --strategy {strategy}", gpu="a100-80gb:2")
        for strategy in ("ddp", "fsdp")
    )
    assert sharded.categories["optimizer"] == pytest.approx(replicated.categories["optimizer"] / 2, rel=0.05)
    assert sharded.peak["allocated"] < 0.75 * replicated.peak["allocated"]


def test_a_card_that_is_too_small_for_either_rank():
    sizes = "--width 4096 --layers 16 --batch-size 16 --strategy fsdp"
    answer = run(f"{TORCHRUN} {sizes}", gpu="t4:2", memory=2 * GIB)
    assert (answer.status, answer.report["verdict"]) == (1, "oom")


def test_the_launchers_own_command_is_found_beside_the_interpreter():
    from pathlib import Path

    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("this installation of torch has no torchrun command")
    command = "--standalone --nproc-per-node 2 distributed.py --strategy fsdp"
    answer = run(command, gpu="a100-80gb:2", python=str(torchrun))
    assert answer.status == 0, answer.stderr
    assert len(answer.report["ranks"]) == 2
