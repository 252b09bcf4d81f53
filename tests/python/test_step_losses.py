"""`memfit.Step` with several losses, each with a mean of its own: parts, batches and ranks that count nothing
of one of them.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from types import SimpleNamespace
from typing import Any

import memfit
import pytest
import torch
from test_step_ranks import ranks
from torch import nn
from training import Perceptron, flat, named_losses, pictures, sums_of_losses

# The number of boxes of each sample.
BOXES: dict[str, list[int]] = {
    "first": [0, 0, 1, 3, 2, 0, 1, 2],
    "middle": [2, 1, 0, 0, 0, 0, 3, 1],
    "last": [2, 1, 3, 1, 2, 0, 0, 0],
    "all but one": [0, 0, 0, 0, 0, 2, 0, 0],
    "all": [0, 0, 0, 0, 0, 0, 0, 0],
    "none": [1, 1, 1, 1, 1, 1, 1, 1],
}


def counts(batch: Any) -> dict[str, float]:
    return {"box": float(batch[1].sum()), "obj": float(batch[0].numel())}


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any], window: int) -> None:
    """A window's batches at once; what counts nothing has no mean."""
    for start in range(0, len(data), window):
        whole = tuple(torch.cat(field) for field in zip(*data[start : start + window], strict=True))
        optimizer.zero_grad()
        sums_of_losses(named_losses(model, whole)).backward()
        optimizer.step()


@pytest.mark.parametrize("counted", [False, True], ids=["seen", "counted"])
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("micro", [1, 2, 3, 8])
@pytest.mark.parametrize("empty", BOXES)
def test_parts_that_count_nothing_of_a_loss_change_nothing(
    empty: str, micro: int, window: int, counted: bool
) -> None:
    torch.manual_seed(0)
    expected = Perceptron().double()
    actual = copy.deepcopy(expected)
    # The last window is shorter, and other batches have boxes of their own.
    data = [pictures(boxes, seed) for seed, boxes in enumerate([BOXES[empty], BOXES["first"]] * 2)]
    plain(expected, torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9), data, window)
    step = memfit.Step(
        actual,
        torch.optim.SGD(actual.parameters(), lr=0.1, momentum=0.9),
        named_losses,
        micro_batch=micro,
        accumulate=window,
        count=counts if counted else None,
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = list(step.over(data))
    assert torch.allclose(flat(actual), flat(expected), rtol=1e-10, atol=1e-12)
    assert all(result.changed == () and result.retries == 0 for result in results)
    assert step.retries == 0
    # Counts that are known in advance, or stay in proportion, need no second run.
    known = window == 1 and (counted or micro == 8)
    assert not (known and said)
    assert all("run twice" in str(each.message) for each in said)
    assert all(float(result.losses["obj"]) > 0 for result in results)
    assert float(results[0].losses["box"]) == 0 if empty == "all" else float(results[0].losses["box"]) > 0


def test_losses_that_stay_in_proportion_are_run_once() -> None:
    """Both are over the same tokens, of which each part has another number."""
    torch.manual_seed(0)
    model = Perceptron().double()
    runs = SimpleNamespace(count=0)

    def losses(module: nn.Module, batch: Any) -> Any:
        runs.count += 1
        outputs, number = module(batch[0]), float(batch[1].sum() + len(batch[1]))
        return {"one": (outputs.pow(2).sum(), number), "other": (outputs.sum(), 2 * number)}

    expected = copy.deepcopy(model)
    data = pictures(BOXES["first"], 0)
    whole = memfit.Step(expected, torch.optim.SGD(expected.parameters(), lr=0.1), losses)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), losses, micro_batch=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*values in Python")
        step.verify(data)
        runs.count = 0
        step(data)
        assert runs.count == 2
        whole(data)
    assert torch.allclose(flat(model), flat(expected), rtol=1e-10, atol=1e-12)


def test_all_losses_that_count_nothing_have_no_mean() -> None:
    def losses(module: nn.Module, batch: Any) -> Any:
        total = module(batch[0]).sum() * 0
        return {"box": (total, 0), "mask": (total, 0)}

    model = Perceptron().double()
    before = flat(model)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), losses, micro_batch=4)
    with pytest.raises(ValueError, match="counts nothing"):
        step(pictures(BOXES["all"], 0))
    assert torch.equal(flat(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_counts_that_are_others_in_each_run_are_said() -> None:
    model = Perceptron().double()
    drawn = iter(range(1, 1000))

    def losses(module: nn.Module, batch: Any) -> Any:
        return {"box": (module(batch[0]).sum(), next(drawn) ** 2), "obj": (module(batch[0]).sum(), 3)}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = memfit.Step(model, optimizer, losses, micro_batch=4, allow="changes-training")
    with pytest.warns(UserWarning, match="ratio of the losses' counts differs"):
        result = step(pictures(BOXES["first"], 0))
    assert any("not averaged over all of it" in text for text in result.changed)


@pytest.mark.filterwarnings("ignore:memfit")
def test_memory_that_runs_out_while_a_window_is_weighed_again() -> None:
    torch.manual_seed(0)
    expected = Perceptron(0.0).double()
    actual = copy.deepcopy(expected)
    data = [pictures(BOXES["first"], 0), pictures(BOXES["last"], 1)]
    plain(expected, torch.optim.SGD(expected.parameters(), lr=0.1), data, 2)
    for fails in range(1, 12):
        model = copy.deepcopy(actual)
        # No number, which would be put back with all else.
        runs = itertools.count(1)

        def losses(module: nn.Module, batch: Any, fails: int = fails, runs: Any = runs) -> Any:
            if next(runs) == fails:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return named_losses(module, batch)

        step = memfit.Step(
            model, torch.optim.SGD(model.parameters(), lr=0.1), losses, micro_batch=3, accumulate=2
        )
        list(step.over(data))
        assert torch.allclose(flat(model), flat(expected), rtol=1e-10, atol=1e-12), fails


@pytest.mark.parametrize("world", [2])
def test_ranks_of_which_some_count_nothing_of_a_loss(world: int) -> None:
    said = ranks(world, 1, "loss_training.py")
    assert said["apart"] == 0
    assert said["worst"] < 1e-12
    assert said["cases"] > 30
    assert said["nothing"] == ["counts nothing"] * world
