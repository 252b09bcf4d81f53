"""`lighter-convolutions`: convolution layers are replaced by ones with fewer weights and equal output shapes.

The new layers begin with random weights. Weights and products become fewer; activations do not, and a pair of
layers keeps one more for the backward pass than the layer that it replaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .registry import Stage, lever
from .replacing import layers_of, regroup, replace
from .target import CannotApply, Target, Undo
from .wrapping import together

# Groups of a grouped convolution, and the smallest number of channels for which anything is replaced: the
# first layer, which reads images, stays.
GROUPS, MIN_CHANNELS = 4, 16


@lever("lighter-convolutions", Stage.MODEL, 3)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Replace 2d convolutions: `value` is "depthwise", "grouped" or "small-kernels"."""
    lighter = _KINDS.get(value) if isinstance(value, str) else None
    if lighter is None:
        raise CannotApply(name, f"the value must be one of {', '.join(_KINDS)}, got {value!r}")
    instead: dict[nn.Module, nn.Module] = {}
    # The script's random numbers stay as they are.
    with torch.random.fork_rng(devices=[]):
        for layer in layers_of(target.model, nn.Conv2d):
            new = lighter(layer)
            if new is not None:
                instead[layer] = new.to(layer.weight.device, layer.weight.dtype)
    if not instead:
        raise CannotApply(name, f"the model has no convolutions that could be {_RESULTS[value]}")
    changed: dict[nn.Parameter, list[nn.Parameter]] = {}
    for layer, new in instead.items():
        trains = layer.weight.requires_grad  # type: ignore[union-attr]
        changed[layer.weight] = [each.requires_grad_(bool(trains)) for each in new.parameters()]  # type: ignore[index]
        if isinstance(layer.bias, nn.Parameter):
            changed[layer.bias] = []
    replaced = replace(target.model, instead)
    return together([replaced, *regroup(target.optimizers, changed)])


def _depthwise(layer: nn.Conv2d) -> nn.Module | None:
    """A filter for each channel, and then a 1x1 convolution that mixes them."""
    if layer.groups != 1 or max(layer.kernel_size) == 1 or layer.in_channels < MIN_CHANNELS:
        return None
    filters = _like(layer, out_channels=layer.in_channels, groups=layer.in_channels, bias=False)
    return nn.Sequential(
        filters, nn.Conv2d(layer.in_channels, layer.out_channels, 1, bias=layer.bias is not None)
    )


def _grouped(layer: nn.Conv2d) -> nn.Module | None:
    """Each of four groups of channels is computed from a quarter of the inputs."""
    shared = math.gcd(layer.in_channels, layer.out_channels)
    if layer.groups != 1 or shared % GROUPS or layer.in_channels < MIN_CHANNELS:
        return None
    return _like(layer, groups=GROUPS)


def _small(layer: nn.Conv2d) -> nn.Module | None:
    """A kernel of 3x3 instead of a larger one, with less padding."""
    if max(layer.kernel_size) <= 3 or isinstance(layer.padding, str):
        return None
    kernel = tuple(min(side, 3) for side in layer.kernel_size)
    less = [
        dilation * (before - after)
        for dilation, before, after in zip(layer.dilation, layer.kernel_size, kernel, strict=True)
    ]
    padding = tuple(before - each // 2 for before, each in zip(layer.padding, less, strict=True))
    if min(padding) < 0 or any(each % 2 for each in less):
        return None
    return _like(layer, kernel_size=kernel, padding=padding)


def _like(layer: nn.Conv2d, **changes: Any) -> nn.Conv2d:
    settings: dict[str, Any] = {
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "kernel_size": layer.kernel_size,
        "stride": layer.stride,
        "padding": layer.padding,
        "dilation": layer.dilation,
        "groups": layer.groups,
        "bias": layer.bias is not None,
        "padding_mode": layer.padding_mode,
    }
    return nn.Conv2d(**{**settings, **changes})


_KINDS: dict[str, Callable[[nn.Conv2d], nn.Module | None]] = {
    "depthwise": _depthwise,
    "grouped": _grouped,
    "small-kernels": _small,
}
_RESULTS = {
    "depthwise": "depthwise",
    "grouped": f"in {GROUPS} groups",
    "small-kernels": "smaller: none has a kernel above 3x3",
}
