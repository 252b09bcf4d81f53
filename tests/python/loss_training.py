"""Several losses on several ranks, some of which count nothing of one: run by `test_step_losses.py`, once for
each rank.
"""

from __future__ import annotations

import itertools
import json
import warnings
from typing import Any

import memfit
import torch
import torch.distributed as dist
from rank_training import spread
from torch.nn.parallel import DistributedDataParallel
from training import Perceptron, flat, named_losses, pictures, sums_of_losses

# The numbers of boxes of each rank's samples, batch by batch.
BOXES = {
    "none on the first": [[[0, 0, 0, 0], [1, 2, 0, 1]], [[2, 0, 1, 3], [0, 0, 1, 0]]],
    "none on the last": [[[2, 0, 1, 3], [0, 0, 1, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]],
    "first parts": [[[0, 0, 2, 1], [0, 0, 1, 2]], [[0, 0, 0, 3], [3, 1, 0, 0]]],
    "nowhere at first": [[[0, 0, 0, 0], [1, 2, 0, 1]], [[0, 0, 0, 0], [0, 0, 1, 0]]],
    "everywhere": [[[1, 1, 1, 1], [1, 1, 1, 1]], [[1, 1, 1, 1], [1, 1, 1, 1]]],
}


def model_of(seed: int = 0) -> Perceptron:
    torch.manual_seed(seed)
    return Perceptron().double()


def main() -> None:
    """Prints a line of JSON."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    worst, apart, cases = 0.0, 0.0, 0
    for boxes, micro, window, inside in itertools.product(BOXES.values(), [1, 3], [1, 2], [False, True]):
        data = [
            [pictures(each, 10 * one + index) for index, each in enumerate(own)]
            for one, own in enumerate(boxes)
        ]
        expected = model_of()
        optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
        for start in range(0, 2, window):
            taken = [batch for own in data for batch in own[start : start + window]]
            optimizer.zero_grad()
            whole = tuple(torch.cat(field) for field in zip(*taken, strict=True))
            sums_of_losses(named_losses(expected, whole)).backward()
            optimizer.step()
        actual = model_of()
        step = memfit.Step(
            DistributedDataParallel(actual),
            torch.optim.SGD(actual.parameters(), lr=0.1),
            named_losses,
            micro_batch=micro,
            accumulate=window,
            timeout=60,
        )
        # As layers do that take their statistics over all ranks.
        step._ranks.inside = inside
        for batch in data[rank]:
            step(batch)
        step.close()
        worst = max(worst, float((flat(actual) - flat(expected)).abs().max()))
        apart = max(apart, spread(flat(actual), world))
        cases += 1

    def nothing(module: Any, batch: Any) -> Any:
        total = module(batch[0]).sum() * 0
        return {"box": (total, 0), "mask": (total, 0)}

    model = model_of()
    step = memfit.Step(
        DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), nothing, timeout=60
    )
    ended = [""] * world
    try:
        step(pictures([0, 0], 0))
    except ValueError as error:
        dist.all_gather_object(ended, "counts nothing" if "counts nothing" in str(error) else str(error))
    if rank == 0:
        print(json.dumps({"worst": worst, "apart": apart, "cases": cases, "nothing": ended}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
