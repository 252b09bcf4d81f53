"""The claims of the rules' pages on mixed precision, carried out with torch."""

from __future__ import annotations

import warnings

import pytest
import torch
from proofs import data, net, proof, says
from torch import nn
from torch.nn import functional


@proof("half-model-with-grad-scaler")
def test_float16_gradients_cannot_be_unscaled():
    model = net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4).half()).sum()).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.step(optimizer)
    refused = sum(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    model = net()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    changed = sum(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    said = (
        f"{refused} of 2 parameters are changed by such a step, and {changed} of 2 if the weights are float32"
    )
    says("half-model-with-grad-scaler", said)


@proof("half-batch-norm")
def test_running_statistics_do_not_fit_in_float16():
    def after(steps, kind, mean, spread, momentum):
        generator = torch.Generator().manual_seed(0)
        layer = nn.BatchNorm1d(4, momentum=momentum).to(kind)
        for _ in range(steps):
            layer((torch.randn(256, 4, generator=generator) * spread + mean).to(kind))
        return layer.eval()

    half, full = (after(100, kind, 0, 320, 0.1) for kind in (torch.float16, torch.float32))
    assert not half(torch.full((1, 4), 320.0).half()).any()
    assert full(torch.full((1, 4), 320.0)).mean() > 0.9
    variances = [layer.running_var.double().mean().item() for layer in (half, full)]
    says(
        "half-batch-norm",
        f"running variance is {variances[0]:.0e} in float16, and {variances[1]:.0e} in float32",
    )
    half, full = (after(6000, kind, 10, 1, 0.001) for kind in (torch.float16, torch.float32))
    means = [layer.running_mean.double().mean().item() for layer in (half, full)]
    says(
        "half-batch-norm",
        f"running mean is {means[0]:.3g} in float16, and {means[1]:.3g} in float32",
    )
    assert nn.BatchNorm2d(3)(torch.ones(2, 3, 4, 4).half()).dtype == torch.float16


@proof("deprecated-cuda-amp")
def test_the_old_names_warn():
    for old in (torch.cuda.amp.autocast, torch.cuda.amp.GradScaler, torch.cpu.amp.autocast):
        with pytest.warns(FutureWarning):
            old()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.cuda.amp.GradScaler(enabled=False)
    given = sum(issubclass(one.category, FutureWarning) for one in caught)
    says("deprecated-cuda-amp", f"3 calls give {given} times a `FutureWarning`")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        torch.amp.autocast("cpu")
        torch.amp.GradScaler("cpu")


@proof("clip-before-unscale")
def test_clipping_scaled_gradients_leaves_nothing():
    steps = {}
    for unscales in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu")
        before = model.weight.detach().clone()
        x, y = data()[0]
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        steps[unscales] = (model.weight - before).norm().item()
    assert steps[False] < steps[True] / 1000
    says("clip-before-unscale", f"the step has a length of {steps[False]:.5f} instead of {steps[True]:.2f}")


@proof("scaler-with-bfloat16")
def test_bfloat16_has_the_range_of_float32():
    small = torch.tensor(1e-30)
    assert small.half() == 0
    assert small.bfloat16() != 0
