"""Parallel plans: read, applied under torchrun's variables, and equal to one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memfit
import pytest
import torch
from memfit._parallel import Parallel, ParallelError
from test_step_ranks import ranks
from training import Perceptron, summed_loss


def test_the_table_of_a_plan_file_is_read() -> None:
    table = {"replicate": 2, "shard": 8, "tensor": 4, "schedule": None, "offload": True}
    parallel = Parallel.from_table(table)
    assert parallel == Parallel(replicate=2, shard=8, tensor=4, offload=True)
    assert (parallel.world, parallel.batches) == (64, 16)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"shards": 2}, "no field `shards`"),
        ({"shard": 0}, "`shard` in [parallel] is 0"),
        ({"shard": True}, "`shard` in [parallel] is True"),
        ({"shard": "2"}, "has to be an integer"),
        ({"offload": 1}, "has to be true or false"),
        ({"offload": True}, "`offload` in [parallel] needs `shard`"),
        ({"pipeline": 2, "schedule": "gpipe"}, "not a known schedule"),
        ({"schedule": "1f1b"}, "needs `pipeline`"),
        ([2], "[parallel] must be a table"),
    ],
)
def test_a_table_with_an_error_is_refused(table: Any, expected: str) -> None:
    with pytest.raises(ParallelError) as raised:
        Parallel.from_table(table)
    assert expected in str(raised.value)


def test_a_plan_for_several_ranks_names_the_command_that_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    model = Perceptron()
    with pytest.raises(ParallelError, match="memfit launch"):
        memfit.Step(
            model, torch.optim.SGD(model.parameters()), summed_loss, plan={"parallel": {"replicate": 2}}
        )


def test_two_ranks_train_as_one_process(tmp_path: Path) -> None:
    """With a fault in FSDP2's and in tensor parallelism's collectives; `make parallel` runs all engines."""
    said = ranks(2, str(tmp_path), "parallel_training.py")
    assert said["retried"] == 2
    assert said["gradients"] < 1e-12
    assert said["parameters"] < 1e-12
    assert said["losses"] < 1e-12
    for error in said["different"]:
        assert error.startswith("the ranks were given different batches")
    assert "the plan is for 4 ranks (shard 4), but 2 were started" in said["world"]
    assert "BatchNorm" in said["norm"]
    assert any("BatchNorm" in change for change in said["norm allowed"])
    assert "already" in said["twice"]
    assert "cannot be applied" in said["tensor"]
    for error in said["opened"]:
        assert "Opened calls `blocks.0.up` without calling `blocks.0`" in error
        assert "into the `forward` of Block" in error
    # Rows where both share the matrix, else the embedding's columns and the head's outputs.
    assert said["divided"] == [[20, 16], [20, 16], [40, 8], [20, 16]]
    first, second = said["orders"]
    # Each rank had its own seed; the loader's order, and its generator, are those of rank 0.
    assert first == second
    assert sorted(first[:8]) == list(range(8))
    # The norms are in float32.
    assert said["mixed"] < 1e-6
    # Written by two ranks, and read by one.
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000001",
        "step-000000002",
        "step-000000003.unfinished",
    ]
    model = Perceptron()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), summed_loss)
    assert memfit.checkpoints.load(tmp_path, step) == {"batches": 2}
    assert step.steps == 2
    loaded = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert torch.equal(loaded, torch.tensor(said["saved"]))
    step.close()
