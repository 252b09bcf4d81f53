"""Trainings that torchrun restarts after a rank was killed: they go on from the last whole checkpoint."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from elastic_training import BATCHES, Blocks, batches, loss
from memfit._parallel.attempts import agree
from tiers import exhaustive

HERE = Path(__file__).parent
SHARDS, COPIES, TENSOR = '{"shard": 2}', '{"replicate": 2}', '{"tensor": 2}'


def train(folder: Path, degrees: str, where: str, dropout: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1"]
    command += [str(HERE / "elastic_training.py"), str(folder), degrees, where, str(dropout)]
    path = os.pathsep.join([str(HERE), *sys.path[1:]])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for _ in range(3):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        # After a peer was killed, processes sometimes abort in a thread of PyTorch's when they end.
        if done.returncode == 0 or "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert said["restarts"] == (where != "never")
    return said


@functools.cache
def uninterrupted(degrees: str, dropout: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return train(Path(folder), degrees, "never", dropout)


def one_process() -> tuple[list[float], torch.Tensor]:
    """The losses and parameters of the training without memfit."""
    torch.manual_seed(7)
    model = Blocks(0.0).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, BATCHES)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses, torch.cat([each.detach().flatten() for each in model.parameters()])


def test_a_rank_killed_in_a_checkpoint_costs_the_steps_since_the_last(tmp_path: Path) -> None:
    said = train(tmp_path, SHARDS, "shards", 0.0)
    assert said["start"] == 2
    losses, parameters = one_process()
    assert said["losses"] == pytest.approx(losses[2:], rel=0, abs=1e-12)
    found = torch.tensor(said["parameters"], dtype=torch.float64)
    assert float((found - parameters).abs().max()) < 1e-12
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000000006", "step-000000008"]


@exhaustive
@pytest.mark.parametrize("degrees", [SHARDS, COPIES, TENSOR])
@pytest.mark.parametrize("where", ["step", "between", "shards", "rename"])
def test_a_restarted_training_equals_one_that_was_not_killed(
    tmp_path: Path, degrees: str, where: str
) -> None:
    """With dropout, whose random numbers go on as well."""
    expected = uninterrupted(degrees, 0.25)
    said = train(tmp_path, degrees, where, 0.25)
    assert said["start"] == 2
    for name in ("parameters", "rate"):
        assert said[name] == expected[name]
    assert said["losses"] == expected["losses"][2:]


def test_ranks_of_one_attempt_agree_on_a_name_that_none_had_before() -> None:
    """Also if an attempt died while its ranks agreed, and left what they wrote."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    names = []
    for left in (0, 1, 3):
        found: dict[int, str] = {}

        def join(rank: int, found: dict[int, str] = found) -> None:
            store = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
            found[rank] = agree(store, rank, 4, timedelta(seconds=30))

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert len(set(found.values())) == 1
        names += [found[0]]
        # What ranks of a further attempt wrote before they were killed.
        for rank in range(left):
            server.set(f"memfit/drawn/{rank}", f"dead {rank}")
            server.set(f"memfit/answer/{rank}", f"dead dead {rank}")
    assert len(set(names)) == 3
