"""Pipelines: the stages of a model on several ranks train as one process does, or are refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import memfit
import pytest
import torch
from memfit._parallel.stages import _balance
from pipeline_training import Base, build, mean
from test_step_ranks import ranks

# What the error of each model that cannot be cut says, on the rank that finds it.
REFUSED = {
    "skips": "needs `stem.weight`, which another stage has",
    "widening": "are both Wider, but the second cannot run on what the first gets",
    "detached": "needs `stem.weight`, which another stage has",
    "twice": "expects no further block",
    "partly": "called 3 of the 4 blocks",
    "reentrant": "use_reentrant=False",
    "norm": "BatchNorm computes its statistics on each micro-batch",
    "blocks": "the model has 3 repeated blocks, but the plan's pipeline needs at least 4",
    "sharded": "`schedule` in [parallel] needs `pipeline` to be at least 2",
    "no call": "called 0 of the 4 blocks",
    "contrastive": "splitting the batch changes training results: the gradient of",
    "failing": "integer division or modulo by zero",
}


def test_a_pipeline_trains_as_one_process(tmp_path: Path) -> None:
    """With faults on both ranks and in both passes; `make parallel` runs more models, and more ranks."""
    said = ranks(2, str(tmp_path), "pipeline_training.py")
    assert said["numerics"]["retried"] == 2
    for what in ("gradients", "parameters", "losses"):
        assert said["numerics"][what] < 1e-12, said["numerics"]
    for case, apart in said["apart"].items():
        assert apart < 1e-12, (case, apart)
    # Batches of 8, 7 and 3 samples: four micro-batches for each of two stages, or those of three samples.
    assert said["parts"] == [[8, 7, 3], [3, 3, 1]]
    assert said["noise"] == 0.0
    assert ["splitting the batch changes training results" in each for each in said["changed"]] == [True]
    assert said["unchanged"] == []
    for case, expected in REFUSED.items():
        assert any(expected in error for error in said["refused"][case]), (case, said["refused"][case])
        # No rank is left to train alone.
        assert all(said["refused"][case]), (case, said["refused"][case])
    # Written by two ranks, and read by one process.
    model = build(Base, seed=5)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), mean)
    assert memfit.checkpoints.load(tmp_path, step) == {"batches": 2}
    loaded = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert torch.equal(loaded, torch.tensor(said["saved"], dtype=torch.float64))
    step.close()


@pytest.mark.parametrize("costs", [[1] * 4, [1] * 9, [3, 1, 1, 1, 2, 5], [7, 1, 1], [1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("last", [0, 1, 4])
@pytest.mark.parametrize("count", [2, 3])
def test_stages_are_as_even_as_blocks_allow(costs: list[int], last: int, count: int) -> None:
    def worst(bounds: list[int]) -> int:
        sums = [sum(costs[begin:end]) for begin, end in itertools.pairwise(bounds)]
        return max(*sums[:-1], sums[-1] + last)

    bounds = _balance(costs, last, count)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(costs), count + 1)
    assert all(begin < end for begin, end in itertools.pairwise(bounds))
    all_ways = itertools.combinations(range(1, len(costs)), count - 1)
    assert worst(bounds) == min(worst([0, *way, len(costs)]) for way in all_ways)
