"""`drop-in-network`: the model's layers are replaced by a network of torchvision or timm with as many
classes.

The model stays the same object, and calls the new network. For classifiers of images: the model takes a batch
of images with 3 channels, and returns a matrix of logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .registry import Stage, lever
from .replacing import regroup
from .several import models
from .target import CannotApply, Target, Undo, needs
from .wrapping import together, wrap

_NETWORK, _TIMM = "memfit_network", "timm/"


@lever("drop-in-network", Stage.MODEL, 1)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Replace the network: `value` is the name of a classifier in torchvision, or in timm after `timm/`.

    The weights start random.
    """
    several = models(target.model)
    if len(several) > 1:
        raise CannotApply(name, "several models train together, and one network would replace them")
    (model,) = several
    classes = _classes(model, target, name)
    with torch.random.fork_rng(devices=[]):
        network = _network(value, classes, name)
    first = next(model.parameters())
    network.to(first.device, first.dtype).train(model.training)
    before = (dict(model._modules), dict(model._parameters), dict(model._buffers))
    old = list(model.parameters())
    for table in (model._modules, model._parameters, model._buffers):
        table.clear()
    model._modules[_NETWORK] = network
    changed: dict[nn.Parameter, list[nn.Parameter]] = {each: [] for each in old}
    # The new parameters train in the group of the first one.
    changed[old[0]] = list(network.parameters())
    undone = [*regroup(target.optimizers, changed), wrap(model, _calls, name)]

    def undo() -> None:
        together(undone)()
        for table, entries in zip((model._modules, model._parameters, model._buffers), before, strict=True):
            table.clear()
            table.update(entries)

    return undo


def _network(value: Any, classes: int, name: str) -> nn.Module:
    """Return a network with random weights."""
    if isinstance(value, str) and value.startswith(_TIMM):
        with needs(name, "timm"):
            import timm
        wanted = value.removeprefix(_TIMM)
        if not timm.is_model(wanted):
            raise CannotApply(name, f"timm has no model of the name {wanted!r}")
        found: nn.Module = timm.create_model(wanted, pretrained=False, num_classes=classes)
        return found
    with needs(name, "torchvision"):
        from torchvision import models as networks
    # Networks for other purposes would download a backbone.
    if value not in networks.list_models(module=networks):
        raise CannotApply(name, f"torchvision has no classifier of the name {value!r}")
    return networks.get_model(value, weights=None, num_classes=classes)


def _calls(model: nn.Module, _forward: Callable[..., Any], /, *args: Any, **_kwargs: Any) -> Any:
    return model._modules[_NETWORK](*args)  # type: ignore[misc]


def _classes(model: nn.Module, target: Target, name: str) -> int:
    """Return the number of classes, from one call of the model in eval mode."""
    if target.example is None:
        raise CannotApply(name, "it needs the arguments of a call of the model")
    args, kwargs = target.example
    images = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(images, torch.Tensor) or images.dim() != 4 or images.shape[1] != 3:
        raise CannotApply(name, "the model is not called with one batch of images with 3 channels")
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            logits = model.eval()(images)
    finally:
        for module, mode in modes:
            module.training = mode
    if not isinstance(logits, torch.Tensor) or logits.shape[:1] != images.shape[:1] or logits.dim() != 2:
        raise CannotApply(
            name, "the model does not return a matrix of logits, as a classifier of images does"
        )
    return int(logits.shape[1])
