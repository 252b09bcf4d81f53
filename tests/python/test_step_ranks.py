"""`memfit.Step` on several ranks: one that runs out of memory neither stops the others nor leaves them
behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiers import exhaustive

HERE = Path(__file__).parent


def ranks(world: int, runs: int | str, script: str = "rank_training.py", limit: int = 600) -> dict[str, Any]:
    """Run a script on several ranks; return the output of rank 0."""
    path = os.pathsep.join([str(HERE), *sys.path[1:]])
    process = subprocess.Popen(
        [sys.executable, str(HERE / "forked_ranks.py"), str(world), str(HERE / script), str(runs)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(("world", "runs"), [(2, 8), pytest.param(4, 10, marks=exhaustive)])
def test_a_rank_that_runs_out_of_memory_changes_nothing(world: int, runs: int) -> None:
    said = ranks(world, runs)
    # A fault that falls on a part that never comes is none.
    assert said["retried"] >= runs // 2
    # The retried window is cut smaller, which is another order of rounding.
    assert said["worst"] < 1e-5
    assert said["apart"] == 0
    assert said["whole"] < 1e-5
    assert said["uneven"] == 0
    assert said["normalised"] == 0
    assert said["ended"].startswith("rank 1 cannot continue")


@pytest.mark.parametrize(("world", "faults"), [(2, 12), pytest.param(4, 8, marks=exhaustive)])
def test_a_rank_that_shares_the_parameters_may_run_out_of_memory(world: int, faults: int) -> None:
    said = ranks(world, faults, "shard_training.py")
    assert said["whole"] < 1e-5
    assert said.get("copies", 0) < 1e-5
    if said["can_retry"]:
        assert said["retried"] == faults
        assert said["ended"] == []
        # The retried window is cut smaller, which is another order of rounding.
        assert said["worst"] < 1e-5
        assert said["apart"] == 0
    else:
        # All ranks end alike, and none hangs.
        assert len(said["ended"]) == faults
    assert said["error"].startswith("rank 1 cannot continue")


@pytest.mark.parametrize(
    ("world", "faults"),
    [(2, 1), pytest.param(2, 3, marks=exhaustive), pytest.param(4, 3, marks=exhaustive)],
)
def test_a_rank_stuck_in_a_collective_is_released(world: int, faults: int) -> None:
    """Collectives of the model's own, the exchange of gradients, and shards whose owner cannot take part any
    more.
    """
    said = ranks(world, faults, "stuck_training.py")
    for name in ("copies", "shards"):
        found = said[name]
        if name == "shards" and not said["can_retry"]:
            # All ranks end alike, and none hangs.
            assert found["ended"] == faults
            continue
        assert found["retried"] == faults
        assert found["worst"] < 1e-5
        assert found["apart"] == 0


@pytest.mark.parametrize("faults", [1, pytest.param(2, marks=exhaustive)])
def test_ranks_that_share_a_batch_may_run_out_of_memory(faults: int) -> None:
    """Tensor parallelism, alone and with FSDP2: layers that lie on both dimensions of a mesh, and on one of
    them.
    """
    said = ranks(4, faults, "tensor_training.py")
    assert said["retried"] == 3 * faults
    # In float32, with sums in another order than those of one process.
    assert said["worst"] < 1e-5
    assert said["apart"] < 1e-6


def test_levers_about_several_ranks_train_as_one_process() -> None:
    said = ranks(2, 1, "lever_ranks.py")
    assert said["held"] < 0.6 * said["parameters"]
    assert said["shard"] < 1e-5
    assert said["apart"] == 0
    assert said["retries"] == 1
    assert said["instead held"] < 0.6 * said["parameters"]
    assert said["instead"] < 1e-5
    assert said["views"]
    assert said["bucket view"] == said["bucket view apart"] == 0
    assert said["undone"]
