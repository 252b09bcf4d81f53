"""Scripts that torchrun starts: each process has a card of its own, and each is in the report."""

from __future__ import annotations

import json
import sys

import pytest
from runs import GIB, ROOT, completed, run

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


def test_one_process_stands_for_a_rank_of_many():
    # 1000 rows over 16 ranks: 63 for each of the first 15, 55 for the last.
    width, layers, ranks = 1000, 4, 16
    shape = f"distributed.py --strategy fsdp --width {width} --layers {layers} --batch-size 8"
    parameters = {}
    for rank in (0, ranks - 1):
        answer = completed(shape, gpu="h100", options=f"--rank {rank} --world-size {ranks}")
        report = answer.report
        assert [each["rank"] for each in report["ranks"]] == [rank]
        assert report["outside"]["communication"] > 0, "NCCL's buffers are those of all ranks"
        assert any(f"only rank {rank} of {ranks} ran" in note for note in report["fidelity"]["notes"])
        parameters[rank] = answer.categories["optimizer"]
    rows = -(-width // ranks), width - (ranks - 1) * -(-width // ranks)
    assert rows == (63, 55)
    # Two states for each element of the shards, and a step counter for each of them; the last layer has ten
    # rows.
    for rank, mine in zip(parameters, rows, strict=True):
        elements = layers * mine * (width + 1) + (width + 1 if rank == 0 else 0)
        assert parameters[rank] == pytest.approx(2 * 4 * elements, rel=0.001)


def test_one_process_stands_for_a_rank_in_groups_of_groups():
    # Groups are made for each row and column of a mesh, long after the first.
    width, layers, ranks = 1000, 4, 16
    shape = f"distributed.py --strategy hybrid --width {width} --layers {layers} --batch-size 8"
    answer = completed(shape, gpu="h100", options=f"--rank 5 --world-size {ranks}")
    # The last layer's ten rows are three on the second of four.
    elements = layers * (width // 4) * (width + 1) + 3 * (width + 1)
    assert answer.categories["optimizer"] == pytest.approx(2 * 4 * elements, rel=0.001)


def test_a_rank_that_there_is_not():
    answer = run("distributed.py", options="--rank 16 --world-size 16")
    assert answer.status == 2
    assert "rank 16 does not exist in a world of 16" in answer.stderr


def test_every_way_of_training_on_several_gpus(tmp_path):
    """Each case of the script holds its own results to what must be true of them."""
    script, said = ROOT / "scripts" / "distributed" / "parallelism.py", tmp_path / "answer.json"
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    answer = run(f"{torchrun} {script} --answer {said}", gpu="a100-80gb:2", options="--steps 0")
    assert said.is_file(), answer.stdout[-3000:] + answer.stderr[-3000:]
    outcomes = json.loads(said.read_text())
    assert len(outcomes) > 30
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "ok"} == {}
