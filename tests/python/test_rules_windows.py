"""Executes the claims of the rules' pages about gradient accumulation: windows of micro-batches, and
incomplete windows.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from proofs import data, gradient, net, proof, says
from torch import nn
from torch.nn import functional


def accumulated(clear, steps, count=4, k=4, divide=True):
    """The gradients that each optimizer step sees."""
    model, seen = net(), []
    for i, (x, y) in enumerate(data(count)):
        if clear(i):
            model.zero_grad()
        (functional.cross_entropy(model(x), y) / (k if divide else 1)).backward()
        if steps(i):
            seen.append(gradient(model).clone())
            if not clear(0):
                model.zero_grad()
    return seen


def whole(count=4):
    model = net()
    x, y = (torch.cat(parts) for parts in zip(*data(count), strict=True))
    functional.cross_entropy(model(x), y).backward()
    return gradient(model)


@proof("zero-grad-inside-window")
def test_zero_grad_inside_the_window_keeps_only_the_last_gradients():
    window = lambda i: (i + 1) % 4 == 0  # noqa: E731
    (right,) = accumulated(lambda _: False, window)
    (wrong,) = accumulated(lambda _: True, window)
    assert torch.allclose(right, whole(), atol=1e-6)
    x, y = data()[-1]
    model = net()
    (functional.cross_entropy(model(x), y) / 4).backward()
    assert torch.equal(wrong, gradient(model))
    # The figures of the page.
    p = torch.zeros(1, requires_grad=True)
    for value in (1.0, 2.0, 3.0, 4.0):
        (p * value / 4).backward()
    assert p.grad.item() == 2.5
    for value in (1.0, 2.0, 3.0, 4.0):
        p.grad = None
        (p * value / 4).backward()
    assert p.grad.item() == 1.0
    says("zero-grad-inside-window", "a gradient of 1.0 instead of 2.5")


@proof("window-off-by-one")
def test_the_first_window_has_one_micro_batch():
    rounds = range(8)
    wrong = [i for i in rounds if i % 4 == 0]
    right = [i for i in rounds if (i + 1) % 4 == 0]
    assert (wrong, right) == ([0, 4], [3, 7])
    says(
        "window-off-by-one",
        "in the iterations 0 and 4 instead of 3 and 7",
        f"with {7 - wrong[-1]} iterations left over",
    )
    first = accumulated(lambda _: False, lambda i: i % 4 == 0)[0]
    x, y = data()[0]
    model = net()
    (functional.cross_entropy(model(x), y) / 4).backward()
    assert torch.equal(first, gradient(model))


@proof("partial-window-dropped")
def test_a_partial_last_window_is_never_stepped():
    wrong = accumulated(lambda _: False, lambda i: (i + 1) % 4 == 0, count=6)
    right = accumulated(lambda _: False, lambda i: (i + 1) % 4 == 0 or i + 1 == 6, count=6)
    samples = [len(x) for x, _ in data(6)]
    lost = sum(samples[4 * len(wrong) :])
    said = f"{len(wrong)} step instead of {len(right)}, and {lost} of {sum(samples)} samples"
    says("partial-window-dropped", said)


@proof("stale-window-index")
def test_an_index_of_another_loop_has_one_value():
    with pytest.raises(NameError):
        exec("for batch in range(3):\n    if (nowhere + 1) % 2 == 0: pass", {})
    for left_over, steps in ((3, 8), (4, 0)):
        assert sum((left_over + 1) % 4 == 0 for _ in range(8)) == steps
    assert sum((i + 1) % 4 == 0 for i in range(8)) == 2
    says("stale-window-index", "8 steps or 0 instead of 2")


@proof("unscaled-accumulation")
def test_a_sum_is_k_times_the_mean():
    (summed,) = accumulated(lambda _: False, lambda i: i == 3, divide=False)
    assert torch.allclose(summed, 4 * whole(), atol=1e-5)
    says(
        "unscaled-accumulation", f"{summed.norm() / whole().norm():.1f} times the gradient of the whole batch"
    )


@proof("scheduler-per-micro-batch")
def test_a_schedule_runs_too_fast():
    optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 8)
    rates = []
    for i in range(8):
        if (i + 1) % 4 == 0:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
    assert rates == [1 - 3 / 8, 1 - 7 / 8]
    says("scheduler-per-micro-batch", f"the second step has a rate of {rates[1]} instead of {1 - 1 / 8}")


@proof("batch-norm-under-accumulation")
def test_batch_normalisation_sees_the_micro_batch():
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    for layer, same in ((nn.BatchNorm1d(3), False), (nn.LayerNorm(3), True)):
        halves = torch.cat([layer(x[:4]), layer(x[4:])])
        assert torch.allclose(layer(x), halves, atol=1e-5) is same


@proof("one-parameter-gradient-scaled")
def test_accumulating_normalised_gradients_changes_the_direction():
    model = net()
    x, y = data()[0]
    functional.cross_entropy(model(x), y).backward()
    before = gradient(model).clone()

    def turned():
        return math.degrees(
            math.acos(functional.cosine_similarity(before, gradient(model), dim=0).clamp(max=1))
        )

    next(model.parameters()).grad /= 4
    says("one-parameter-gradient-scaled", f"the direction turns by {turned():.0f} degrees")
    list(model.parameters())[1].grad /= 4
    says("one-parameter-gradient-scaled", f"all gradients alike: {turned():.0f} degrees")


@proof("missing-zero-grad")
def test_gradients_add_up():
    model = net()
    x, y = data()[0]
    functional.cross_entropy(model(x), y).backward()
    one = gradient(model).clone()
    times = []
    for _ in range(4):
        functional.cross_entropy(model(x), y).backward()
        times.append((gradient(model) / one).mean().item())
        assert torch.allclose(gradient(model), times[-1] * one)
    says(
        "missing-zero-grad",
        f"twice they are {times[0]:.0f} times as large, after five times {times[-1]:.0f} times",
    )
