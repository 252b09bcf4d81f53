"""`memfit.Step` when memory runs out: whatever fails, at whatever operation, no trace of it is left."""

from __future__ import annotations

import copy
import itertools
import random
import threading
import warnings
import weakref
from typing import Any

import memfit
import pytest
import torch
from tiers import every
from torch import nn
from torch.nn import functional
from training import (
    Convolutional,
    FailAt,
    Normalised,
    Perceptron,
    Tagger,
    Transformer,
    batches,
    flat,
    mean_loss,
    summed_loss,
)

FRAGILE: dict[str, tuple[Any, str, Any]] = {
    "dropout": (lambda: Perceptron(0.5), "perceptron", mean_loss),
    "batch norm": (Normalised, "perceptron", mean_loss),
    "convolution with dropout": (lambda: Convolutional(0.5), "convolutional", mean_loss),
    "recurrent with dropout": (lambda: Tagger(0.5), "tagger", summed_loss),
    "attention with dropout": (lambda: Transformer(0.5), "transformer", mean_loss),
}


@pytest.mark.parametrize("name", FRAGILE)
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.filterwarnings("ignore:memfit")
def test_an_out_of_memory_at_every_operation_leaves_no_trace(name: str, window: int) -> None:
    """The retried window is bit for bit the one that began with the smaller size."""
    build, kind, loss = FRAGILE[name]
    data = batches(kind, [8] * window, torch.float32)
    torch.manual_seed(1)
    fresh = build()

    def run(at: int | None, micro: int) -> tuple[FailAt, nn.Module, memfit.Step, list[Any]]:
        model = copy.deepcopy(fresh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        step = memfit.Step(
            model, optimizer, loss, micro_batch=micro, accumulate=window, allow="changes-training"
        )
        torch.manual_seed(2)
        results = [step(batch) for batch in data[:-1]]
        # The last batch is where it fails: forward or backward, up to the optimizer's own step.
        with FailAt(at) as fault:
            results.append(step(data[-1]))
        step.close()
        return fault, model, step, results

    counting = FailAt()
    original = torch.optim.SGD.step

    def note(self: Any, *arguments: Any, **keywords: Any) -> Any:
        counting.at = counting.at or -counting.seen
        return original(self, *arguments, **keywords)

    model = copy.deepcopy(fresh)
    step = memfit.Step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False),
        loss,
        micro_batch=8,
        accumulate=window,
        allow="changes-training",
    )
    torch.manual_seed(2)
    for batch in data[:-1]:
        step(batch)
    with pytest.MonkeyPatch.context() as patch, counting:
        patch.setattr(torch.optim.SGD, "step", note)
        step(data[-1])
    operations = -(counting.at or 0)
    assert operations > 20
    _, expected, _, _ = run(None, 4)
    survived = 0
    # Of the first model's operations a third, and a dozen of each other's.
    stride = 3 if name == "dropout" and window == 1 else max(operations // 12, 1)
    tried = every(stride, range(1, operations + 1))
    for at in tried:
        fault, model, step, results = run(at, 8)
        assert fault.raised
        if results[-1].retries == 0:
            # It was noticed where nothing of the step depends on it, as in looking at the labels.
            continue
        survived += 1
        assert results[-1].retries == 1
        assert results[-1].micro_batches == 2
        assert torch.equal(flat(model), flat(expected)), f"operation {at} of {operations}"
    assert survived > len(tried) * 0.8


def test_a_failed_attempt_releases_its_memory() -> None:
    # An object of a library, since attributes of the user's own are put back like all else.
    held = threading.local()
    held.references = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        hidden = model(batch[0]) * 1
        if len(batch[0]) > 4:
            held.references.append(weakref.ref(hidden))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        assert all(reference() is None for reference in held.references)
        return functional.cross_entropy(hidden, batch[1])

    model = Perceptron()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    result = step(batches("perceptron", [8], torch.float32)[0])
    assert (result.retries, result.micro_batches) == (1, 2)
    # The whole batch, and what was to be compared of it.
    assert len(held.references) > 1
    assert (step.retries, step.steps) == (1, 1)


@pytest.mark.parametrize("since", [0, 5], ids=["from the first step", "later"])
def test_a_retry_repeats_random_numbers_of_python_and_numpy(since: int) -> None:
    """A forward that takes random numbers from Python's or NumPy's generator gets the same ones when it is
    run again.
    """
    numpy = pytest.importorskip("numpy")
    data = batches("perceptron", [8] * 6, torch.float32)

    def run(micro: int, fails: bool) -> tuple[torch.Tensor, float]:
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        model = Perceptron()
        last = False

        def loss(module: nn.Module, batch: Any) -> torch.Tensor:
            value = mean_loss(module, batch)
            if last or step.steps >= since:
                value = value * (random.random() + numpy.random.rand())
            if fails and last and len(batch[0]) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return value

        step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
        for batch in data[:-1]:
            step(batch)
        if micro < 8:
            step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=micro)
        last = True
        step(data[-1])
        return flat(model), random.random() + numpy.random.rand()

    retried, expected = run(8, True), run(4, False)
    assert torch.equal(retried[0], expected[0])
    assert retried[1] == expected[1]


def test_a_comparison_within_a_window_leaves_its_beginning_as_it_was() -> None:
    """The second batch of a window is compared and then runs out of memory: the window starts again."""
    torch.manual_seed(1)
    model, seen, faults = Perceptron(), torch.zeros(1), iter([True])
    # An iterator, since values that a forward pass changes are put back.
    generator, drawn = torch.Generator().manual_seed(3), []

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        seen.add_(len(batch[0]))
        noise = torch.randn(len(batch[0]), 1, generator=generator)
        if step.verification is not None and next(faults, False):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if step.verification is not None:
            drawn.append(noise)
        return mean_loss(model, batch) + 0.0 * noise.mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = memfit.Step(model, optimizer, loss, micro_batch=4, accumulate=2)
    for batch in batches("perceptron", [4, 8], torch.float32):
        step(batch)
    assert step.verification is not None
    assert step.verification.equal
    assert (next(faults, None), step.retries, step.steps, seen.item()) == (None, 1, 1, 12.0)
    alike = torch.randn(12, 1, generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.cat(drawn)[:4], alike[:4])


class Averaging(nn.Module):
    """Keeps a mean of its inputs in a buffer that each forward pass replaces, and one that the first
    creates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = Perceptron()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("first", None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            if self.first is None:
                self.first = inputs[0].detach().clone()
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return self.net(inputs - self.mean)


@pytest.mark.parametrize("since", [0, 1, 3])
@pytest.mark.parametrize("build", [Normalised, Averaging])
@pytest.mark.filterwarnings("ignore:memfit")
def test_buffers_that_first_change_in_a_later_step_are_restored(build: Any, since: int) -> None:
    """Layers that are frozen at first: the window in which they begin to keep statistics is the one that
    fails.
    """
    data = batches("perceptron", [8] * (since + 1), torch.float32)

    def run(fails: bool) -> nn.Module:
        torch.manual_seed(3)
        model = build().eval()

        def loss(module: nn.Module, batch: Any) -> torch.Tensor:
            value = mean_loss(module, batch)
            if fails and module.training and len(batch[0]) == 8:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return value

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = memfit.Step(model, optimizer, loss, allow="changes-training")
        for batch in data[:-1]:
            step(batch)
        model.train()
        last = step if fails else memfit.Step(model, optimizer, loss, micro_batch=4, allow="changes-training")
        assert last(data[-1]).micro_batches == 2
        return model

    assert torch.equal(flat(run(True)), flat(run(False)))


def test_a_single_sample_that_does_not_fit_raises_with_state_unchanged() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        model(batch[0])
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB.")

    torch.manual_seed(0)
    model = Convolutional(0.5)
    before, state = flat(model), torch.get_rng_state()
    step = memfit.Step(model, torch.optim.AdamW(model.parameters()), loss)
    with pytest.raises(memfit.StepDoesNotFit, match="single sample") as error:
        step(batches("convolutional", [8], torch.float32)[0])
    assert "hint:" in str(error.value)
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_errors_of_the_users_loss_are_raised_unchanged() -> None:
    def loss(*_: Any) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    model = Perceptron()
    step = memfit.Step(model, torch.optim.AdamW(model.parameters()), loss)
    with pytest.raises(ZeroDivisionError, match="mine"):
        step(batches("perceptron", [8], torch.float32)[0])


@pytest.mark.parametrize("first", [True, False], ids=["in the first step", "later"])
def test_an_optimizer_that_runs_out_is_never_half_applied(first: bool) -> None:
    """If any operation of the optimizer fails, the step is complete, or has no effect, or is reported as
    invalid.
    """
    data = batches("perceptron", [4], torch.float32)[0]
    outcomes: dict[str, int] = {}
    ended = {False: False, True: False}
    for backup, at in itertools.product([False, True], range(1, 60)):
        if ended[backup]:
            continue
        torch.manual_seed(0)
        model = Perceptron()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
        step = memfit.Step(model, optimizer, mean_loss, backup=backup)
        if not first:
            step(data)
        before = flat(model)
        fault = FailAt(at)
        original = optimizer.step

        def failing(*arguments: Any, fault: FailAt = fault, original: Any = original, **keywords: Any) -> Any:
            with fault:
                return original(*arguments, **keywords)

        optimizer.step = failing  # type: ignore[method-assign]
        reference = copy.deepcopy(model)
        stepped = torch.optim.AdamW(reference.parameters(), lr=0.01, foreach=False)
        stepped.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        mean_loss(reference, data).backward()
        stepped.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                step(data)
            except memfit.StepInvalid:
                outcomes["invalid"] = outcomes.get("invalid", 0) + 1
                assert not backup
                continue
        if not fault.raised:
            ended[backup] = True
            continue
        kind = "survived"
        outcomes[kind] = outcomes.get(kind, 0) + 1
        assert not torch.equal(flat(model), before)
        assert torch.allclose(flat(model), flat(reference), rtol=0, atol=1e-6), (backup, at)
    # Without a copy only a failure before the first write is survived: where the states are made.
    assert outcomes["survived"] > 5
    assert outcomes["invalid"] > 0
    assert all(ended.values()), "every operation was tried"
