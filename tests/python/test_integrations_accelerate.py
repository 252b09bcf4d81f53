"""Accelerate with memfit: the same losses without an out-of-memory error, and the same end with one; a
smaller batch that keeps the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from torch.nn import functional
from training import flat

accelerate = pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture(autouse=True)
def forget_the_accelerator() -> Iterator[None]:
    """Accelerators of a process share their precision, which the next test's would have as well."""
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(True)


def classify(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def accelerated(
    accumulate: int, use: bool, at: int | None = None, precision: str = "no"
) -> tuple[list[float], torch.Tensor, int]:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(64, 6, generator=generator), torch.randint(0, 3, (64,), generator=generator)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), 8)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses, retries = [], 0
    if not use:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = classify(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses, flat(model), 0

    from memfit.integrations.accelerate import prepare

    calls = [0]

    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        loss = classify(model, batch)
        if at is not None and calls[0] > at and len(batch[0]) > 4:
            raise torch.OutOfMemoryError(MEMORY)
        return loss

    with prepare(accelerator, model, optimizer, failing, scheduler=scheduler) as step:
        for batch in loader:
            result = step(batch)
            losses.append(float(result.loss))
            retries += result.retries
    return losses, flat(model), retries


@pytest.mark.parametrize(("accumulate", "precision"), [(1, "no"), (2, "no"), (2, "bf16")])
def test_accelerate_trains_the_same_with_a_failure_and_without(accumulate: int, precision: str) -> None:
    plain = accelerated(accumulate, use=False, precision=precision)
    same = accelerated(accumulate, use=True, precision=precision)
    assert (same[0], same[2]) == (plain[0], 0)
    assert torch.equal(same[1], plain[1])
    failed = accelerated(accumulate, use=True, at=3, precision=precision)
    assert failed[2] > 0
    tolerance = 1e-5 if precision == "no" else 2e-2
    assert failed[0] == pytest.approx(plain[0], rel=tolerance)
    assert torch.allclose(failed[1], plain[1], atol=tolerance)


def test_a_smaller_executable_batch_keeps_the_global_batch() -> None:
    from memfit.integrations.accelerate import find_executable_batch_size

    tried: list[tuple[int, int]] = []

    @find_executable_batch_size(starting_batch_size=48)
    def train(batch_size: int, text: str, accumulate: int = 1) -> str:
        tried.append((batch_size, accumulate))
        if batch_size > 6:
            raise torch.OutOfMemoryError(MEMORY)
        return f"{text} {batch_size}"

    assert train("fits with") == "fits with 6"
    assert tried == [(48, 1), (24, 2), (12, 4), (6, 8)]
    # Another call starts from the beginning: it may have another model.
    tried.clear()
    train("again")
    assert tried[0] == (48, 1)

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)

    @find_executable_batch_size(starting_batch_size=9, accelerator=accelerator)
    def accumulated(batch_size: int) -> int:
        if batch_size > 3:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
        return int(accelerator.gradient_accumulation_steps)

    assert accumulated() == 6


def test_an_executable_batch_size_refuses_what_would_change_the_training() -> None:
    from memfit.integrations.accelerate import find_executable_batch_size

    with pytest.raises(TypeError, match="no parameter `accumulate`"):
        find_executable_batch_size(lambda _: None)
    with pytest.raises(ValueError, match="do not divide the global batch"):
        find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: 3)(
            lambda _, accumulate: None  # noqa: ARG005
        )

    def never(batch_size: int, accumulate: int) -> None:  # noqa: ARG001
        raise torch.OutOfMemoryError(MEMORY)

    with pytest.raises(memfit.StepDoesNotFit, match="batch size of 1"):
        find_executable_batch_size(never, starting_batch_size=6)()

    def broken(batch_size: int, accumulate: int) -> None:  # noqa: ARG001
        raise RuntimeError("a shape does not match")

    with pytest.raises(RuntimeError, match="a shape does not match"):
        find_executable_batch_size(broken)()
