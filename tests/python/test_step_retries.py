"""Retries of `memfit.Step` after memory ran out at random operations of all kinds of training loops: bit for
bit the step that began with the smaller micro-batches.
"""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import memfit
import pytest
import torch
from loop_cases import LOOPS, Loop
from loop_others import OTHERS, SHARED
from tiers import EXHAUSTIVE, first
from torch import nn
from training import FailAt, flat

ALL = LOOPS | {name: Loop(*parts) for name, parts in (OTHERS | SHARED).items()}
# `make test` tries every fourth loop, once.
FAILURES = 8 if EXHAUSTIVE else 1
LATER = [name for place, name in enumerate(ALL) if place % 4]
SAMPLES = 8


def trained(loop: Loop, fresh: nn.Module, micro: int, at: int | None) -> tuple[int, torch.Tensor, Any]:
    """Train three steps, of which the first runs out of memory at an operation. Return the number of
    operations before the first step of the optimizer, the weights at the end, and the first result.
    """
    generator = torch.Generator().manual_seed(4)
    model = copy.deepcopy(fresh)
    data = [loop.data(generator, SAMPLES) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    step = memfit.Step(
        model, optimizer, loop.loss(model), micro_batch=micro, allow="changes-training", **loop.settings
    )
    torch.manual_seed(2)
    random.seed(2)
    seen: list[int] = []
    with FailAt(at) as fault:
        optimizer.register_step_pre_hook(lambda *_: seen.append(fault.seen))
        result = step(data[0])
    assert fault.raised == (at is not None)
    for batch in data[1:]:
        step(batch)
    step.close()
    return seen[0], flat(model).nan_to_num(7.0), result


@pytest.mark.parametrize("name", first(ALL, LATER))
def test_a_retry_at_a_random_operation_equals_a_step_in_smaller_parts(name: str) -> None:
    loop = ALL[name]
    chance = random.Random(name)
    torch.manual_seed(1)
    fresh = loop.build().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            operations, _, _ = trained(loop, fresh, SAMPLES, None)
            _, expected, begun = trained(loop, fresh, SAMPLES // 2, None)
        except (RuntimeError, ValueError, TypeError) as error:
            pytest.skip(f"the loop does not run in two parts: {error}")
        retried = 0
        for _ in range(10 * FAILURES):
            at = chance.randint(1, operations)
            _, found, result = trained(loop, fresh, SAMPLES, at)
            if result.retries == 0:
                # It was noticed where nothing of the step depends on it.
                continue
            assert result.micro_batches == begun.micro_batches
            assert torch.equal(found, expected), f"operation {at} of {operations}"
            retried += 1
            if retried == FAILURES:
                break
    assert retried == FAILURES
