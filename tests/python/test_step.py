"""`memfit.Step`: the same mathematics as a loop over whole batches, whatever the split."""

from __future__ import annotations

import copy
import itertools
import queue
import warnings
from typing import Any

import memfit
import pytest
import torch
from tiers import first, rarely
from torch import nn
from torch.nn import functional
from training import (
    Convolutional,
    Normalised,
    Perceptron,
    Tagger,
    Transformer,
    batches,
    flat,
    mean_loss,
    summed_loss,
)

MODELS: dict[str, Any] = {
    "perceptron": Perceptron,
    "convolutional": Convolutional,
    "tagger": Tagger,
    "transformer": Transformer,
}


def whole_batches(
    model: nn.Module, data: list[Any], loss: Any, window: int, clip: float | None, scheduled: bool
) -> tuple[list[float], list[torch.Tensor]]:
    """The loop that memfit stands for: a window's batches at once, one mean, one step. The losses, and the
    gradients that the first step was made with.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    gradients = first_gradients(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if scheduled else None
    losses = []
    for start in range(0, len(data), window):
        taken = data[start : start + window]
        batch = (torch.cat([entry[0] for entry in taken]), torch.cat([entry[1] for entry in taken]))
        returned = loss(model, batch)
        value = returned[0] / returned[1] if isinstance(returned, tuple) else returned
        optimizer.zero_grad()
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(value.detach()))
    return losses, gradients


def first_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Will have the gradients of an optimizer's first step."""
    gradients: list[torch.Tensor] = []

    def note(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not gradients:
            gradients.extend(p.grad.clone() for group in optimizer.param_groups for p in group["params"])

    optimizer.register_step_pre_hook(note)
    return gradients


COMBINATIONS = list(
    itertools.product(
        MODELS,
        [[8, 8, 8, 8], [8, 5, 8, 3], [1, 7]],
        [None, 1, 3, 8],
        [1, 3],
        [None, 0.1],
        [torch.float64, torch.float32],
    )
)


@pytest.mark.parametrize("kind", first(MODELS, besides=["tagger"]))
@pytest.mark.parametrize("dtype", [torch.float64, rarely(torch.float32)], ids=["float64", "float32"])
def test_training_in_micro_batches_equals_that_with_whole_batches(kind: str, dtype: torch.dtype) -> None:
    """384 combinations of model, batches, split, window, clipping and type, with and without a schedule."""
    chosen = [entry for entry in COMBINATIONS if entry[0] == kind and entry[5] == dtype]
    assert len(chosen) == 48
    for index, (_, sizes, micro, window, clip, _) in enumerate(chosen):
        scheduled = index % 2 == 0
        # Means over samples, and sums with a count of their own; a tagger's labels are ignored, so it has to
        # count.
        loss = summed_loss if kind == "tagger" or index % 3 == 0 else mean_loss
        torch.manual_seed(3)
        expected = MODELS[kind]().to(dtype)
        actual = copy.deepcopy(expected)
        data = batches(kind, sizes, dtype)
        losses, gradients = whole_batches(expected, data, loss, window, clip, scheduled)
        optimizer = torch.optim.AdamW(actual.parameters(), lr=0.01)
        first = first_gradients(optimizer)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if scheduled else None
        with memfit.Step(
            actual,
            optimizer,
            loss,
            micro_batch=micro,
            accumulate=window,
            clip_grad_norm=clip,
            scheduler=scheduler,
        ) as step:
            results = [step(batch) for batch in data]
            step.finish()
        assert [result.micro_batches for result in results] == [-(-n // (micro or n)) for n in sizes]
        assert step.steps == len(losses)
        if window == 1:
            tolerance = 1e-12 if dtype == torch.float64 else 1e-5
            assert [float(result.loss) for result in results] == pytest.approx(losses, rel=tolerance)
        for one, other in zip(gradients, first, strict=True):
            error = (one - other).norm() / one.norm().clamp_min(1e-3)
            assert error < (1e-12 if dtype == torch.float64 else 1e-5), (sizes, micro, window, clip)
        difference = (flat(expected) - flat(actual)).norm() / flat(expected).norm()
        # Adam divides a gradient by its own size, so rounding of a gradient near zero is seen in the
        # parameter.
        assert difference < (1e-10 if dtype == torch.float64 else 2e-3), (sizes, micro, window, clip)


@pytest.mark.parametrize("kind", first(MODELS, besides=["transformer"]))
def test_gradients_are_those_of_the_whole_batch_to_the_last_digits(kind: str) -> None:
    """With plain gradient descent a parameter's change is its gradient."""
    for sizes, micro, window in itertools.product([[8, 8], [8, 5, 3], [7]], [1, 3, 5], [1, 2, 4]):
        torch.manual_seed(3)
        model = MODELS[kind]().double()
        reference = copy.deepcopy(model)
        data = batches(kind, sizes, torch.float64)
        seen: list[list[torch.Tensor]] = []

        class Looking(torch.optim.SGD):
            def step(self, _closure: Any = None) -> None:  # type: ignore[override]
                seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])  # noqa: B023

        with memfit.Step(
            model, Looking(model.parameters(), lr=0.1), summed_loss, micro_batch=micro, accumulate=window
        ) as step:
            for batch in data:
                step(batch)
        for index, start in enumerate(range(0, len(data), window)):
            taken = data[start : start + window]
            reference.zero_grad()
            total, count = summed_loss(
                reference, tuple(torch.cat(field) for field in zip(*taken, strict=True))
            )
            (total / count).backward()
            for parameter, gradient in zip(reference.parameters(), seen[index], strict=True):
                error = (parameter.grad - gradient).norm() / parameter.grad.norm().clamp_min(1e-3)
                assert error < 1e-12


DRAWING = {
    "perceptron": (lambda: Perceptron(0.5), [None, "bf16", "fp16"]),
    "convolutional": (lambda: Convolutional(0.5), [None, "bf16"]),
    "transformer": (lambda: Transformer(0.5), [None, "bf16"]),
}


@pytest.mark.parametrize("kind", first(DRAWING, besides=["perceptron"]))
def test_training_with_dropout_equals_a_loop_with_the_same_split(kind: str) -> None:
    """112 combinations of model, split, window, precision, clipping and schedule, bit for bit a loop written
    by hand.
    """
    build, precisions = DRAWING[kind]
    for micro, window, precision, clip in itertools.product([1, 3, 4, 8], [1, 2], precisions, [None, 0.1]):
        data = batches(kind, [8] * 4, torch.float32)
        torch.manual_seed(3)
        expected = build()
        actual = copy.deepcopy(expected)
        scheduled = micro != 3

        def fresh(model: nn.Module, scheduled: bool = scheduled) -> tuple[Any, Any, Any]:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if scheduled else None
            return optimizer, schedule, torch.amp.GradScaler("cpu", init_scale=2.0**8)

        optimizer, schedule, scaler = fresh(expected)
        torch.manual_seed(4)
        for start in range(0, len(data), window):
            for inputs, labels in data[start : start + window]:
                for begin in range(0, 8, micro):
                    part = inputs[begin : begin + micro], labels[begin : begin + micro]
                    kind_of = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
                        precision or "", torch.float32
                    )
                    with torch.autocast("cpu", dtype=kind_of, enabled=precision is not None):
                        loss = mean_loss(expected, part)
                    loss = loss * (len(part[0]) / (8 * window))
                    (scaler.scale(loss) if precision == "fp16" else loss).backward()
            if precision == "fp16":
                scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(expected.parameters(), clip)
            if precision == "fp16":
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()

        optimizer, schedule, scaler = fresh(actual)
        torch.manual_seed(4)
        with memfit.Step(
            actual,
            optimizer,
            mean_loss,
            micro_batch=micro,
            accumulate=window,
            clip_grad_norm=clip,
            scheduler=schedule,
            precision=precision,
            scaler=scaler if precision == "fp16" else None,
        ) as step:
            for batch in data:
                step(batch)
        assert torch.equal(flat(actual), flat(expected)), (micro, window, precision, clip)


def test_windows_of_several_batches_step_once() -> None:
    model = Perceptron().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data = batches("perceptron", [4] * 6, torch.float64)
    step = memfit.Step(model, optimizer, mean_loss, accumulate=4, scheduler=scheduler)
    results = list(step.over(iter(data)))
    assert [result.stepped for result in results] == [False, False, False, True, False, False]
    assert step.steps == 2
    assert scheduler.last_epoch == 2
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not step.finish()


def test_an_unfinished_window_causes_a_warning() -> None:
    model = Perceptron()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_loss, accumulate=2)
    step(batches("perceptron", [4], torch.float32)[0])
    with pytest.warns(UserWarning, match=r"step\.finish"):
        step.close()
    with pytest.raises(RuntimeError, match="closed"):
        step(batches("perceptron", [4], torch.float32)[0])


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "tf32"])
def test_precisions(precision: str) -> None:
    model = Perceptron()
    tf32 = torch.backends.cuda.matmul.allow_tf32
    types = []
    model.net[0].register_forward_hook(lambda _module, _inputs, output: types.append(output.dtype))
    step = memfit.Step(
        model,
        torch.optim.AdamW(model.parameters()),
        mean_loss,
        precision=precision,
        micro_batch=4,
        clip_grad_norm=1.0,
    )
    batch = batches("perceptron", [8], torch.float32)[0]
    # The comparison runs in float64 as well.
    step.verify(batch)
    types.clear()
    result = step(batch)
    expected = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    assert set(types) == {expected}
    assert result.grad_norm is not None
    assert result.loss.isfinite()
    assert torch.backends.cuda.matmul.allow_tf32 == (tf32 or precision == "tf32")
    step.close()
    assert torch.backends.cuda.matmul.allow_tf32 == tf32
    with pytest.raises(ValueError, match="int3"):
        memfit.Step(model, torch.optim.AdamW(model.parameters()), mean_loss, precision="int3")


def test_steps_that_the_scaler_skips_are_reported_and_the_scale_is_one_in_a_window() -> None:
    model = Perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    # An object of a library: lists of the loss function's own are put back after a comparison.
    scales: queue.SimpleQueue[float] = queue.SimpleQueue()

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        scales.put(scaler.get_scale())
        value = mean_loss(module, batch)
        return value * float("inf") if scales.qsize() == 2 else value

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    step = memfit.Step(
        model, optimizer, loss, precision="fp16", scaler=scaler, micro_batch=4, scheduler=scheduler
    )
    data = batches("perceptron", [8, 8], torch.float32)
    before = flat(model)
    # Compared before any of them overflows.
    for _ in range(8):
        scales.put(0.0)
    step.verify(data[0])
    while not scales.empty():
        scales.get()
    first = step(data[0])
    assert first.skipped
    assert torch.equal(flat(model), before)
    assert scheduler.last_epoch == 0
    second = step(data[1])
    assert not second.skipped
    seen = [scales.get() for _ in range(scales.qsize())]
    # Between the two steps, what overflowed is compared.
    assert (seen[:2], seen[-2:]) == ([256.0, 256.0], [128.0, 128.0])


def test_fp16_overflow_warnings_name_modules_and_scales() -> None:
    torch.manual_seed(0)
    model = Perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=10**6)
    calls = itertools.count(1)

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        seen = next(calls)
        value = mean_loss(module, batch)
        # Only the last layer's gradients overflow, in every fourth step from the fortieth on.
        return value + (module.net[3].bias.sum() * float("inf") if seen > 40 and seen % 4 == 0 else 0.0)

    step = memfit.Step(
        model, torch.optim.SGD(model.parameters(), lr=0.0), loss, precision="fp16", scaler=scaler
    )
    data = batches("perceptron", [4], torch.float32)[0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(68):
            step(data)
    told = [str(each.message) for each in said if "overflowed" in str(each.message)]
    assert len(told) == 1
    for text in ("6 of the last", "64 → 32 → 16 → 8", "most often in `net.3`", "bf16"):
        assert text in told[0], told[0]
    assert (step.skipped, step.scales[:2], step.scales[-1]) == (7, [64.0, 32.0], 0.5)


def test_an_inexact_division_is_reported_once() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Perceptron()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return self.inner(inputs)

    def contrastive(model: nn.Module, batch: Any) -> torch.Tensor:
        codes = functional.normalize(model(batch[0]), dim=1)
        return functional.cross_entropy(codes @ codes.T, torch.arange(len(codes)))

    def centred(model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])
        return (outputs - outputs.mean(0)).pow(2).mean()

    def editing(model: nn.Module, batch: Any) -> torch.Tensor:
        batch[0].mul_(2)
        return mean_loss(model, batch)

    data = batches("perceptron", [8, 8], torch.float32)
    for model, loss, text in [
        (Normalised(), mean_loss, "net.1.running_mean"),
        (Stateful(), mean_loss, "state differs: `seen`"),
        (Perceptron(), contrastive, "the loss differs by"),
        (Perceptron(), centred, "the loss differs by"),
        (Perceptron(), editing, "in place"),
    ]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step = memfit.Step(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                loss,
                micro_batch=4,
                allow="changes-training",
            )
            results = [step((batch[0].clone(), batch[1])) for batch in data]
        assert any(text in entry for result in results for entry in result.changed), text
        assert sum(text in str(warning.message) for warning in said) == 1

    def normalised(model: nn.Module, batch: Any) -> torch.Tensor:
        codes = model(batch[0])
        lengths = codes.norm(2, 1, keepdim=True) + torch.linalg.vector_norm(codes, dim=1, keepdim=True)
        return functional.cross_entropy(functional.normalize(codes, dim=1) / lengths, batch[1])

    # Norms of each sample by itself.
    model = Perceptron()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), normalised, micro_batch=4)
    assert step(data[0]).changed == ()
    for kind, build in MODELS.items():
        model = build(0.5)
        loss = summed_loss if kind == "tagger" else mean_loss
        # A part of as many samples as a sequence is long, or as the embedding is wide, is no reason for a
        # suspicion.
        for size, micro in [(16, 8), (14, 7), (8, 4)]:
            batch = batches(kind, [size], torch.float32)[0]
            step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=micro)
            assert step(batch).changed == (), (kind, size)


def test_several_losses_have_a_mean_each() -> None:
    torch.manual_seed(0)
    model = Perceptron().double()
    reference = copy.deepcopy(model)
    inputs, labels = batches("perceptron", [8], torch.float64)[0]
    labels[::2] = -100

    def losses(module: nn.Module, batch: Any) -> dict[str, Any]:
        outputs = module(batch[0])
        return {
            "classes": (
                functional.cross_entropy(outputs, batch[1], ignore_index=-100, reduction="sum"),
                (batch[1] != -100).sum(),
            ),
            "size": (outputs.pow(2).sum(), outputs.numel()),
        }

    whole = losses(reference, (inputs, labels))
    sum(total / count for total, count in whole.values()).backward()
    gradients: list[torch.Tensor] = []

    class Looking(torch.optim.SGD):
        def step(self, _closure: Any = None) -> None:  # type: ignore[override]
            gradients.extend(p.grad.clone() for group in self.param_groups for p in group["params"])

    def counts(batch: Any) -> dict[str, float]:
        return {"classes": float((batch[1] != -100).sum()), "size": float(len(batch[0]) * 5)}

    optimizer = Looking(model.parameters(), lr=0.1)
    result = memfit.Step(model, optimizer, losses, micro_batch=3, count=counts)((inputs, labels))
    assert result.changed == ()
    assert result.losses is not None
    assert set(result.losses) == {"classes", "size"}
    for parameter, gradient in zip(reference.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-10, atol=1e-14)
