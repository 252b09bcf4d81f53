"""`gradient-as-bucket-view`: under DistributedDataParallel, gradients live in the buckets that are exchanged, once."""

from __future__ import annotations

from typing import Any

from torch import nn

from .target import CannotApply, Target, Undo
from .wrapping import together


def apply(target: Target, _value: Any, name: str) -> Undo:
    """Wrap the model's module anew, in place; its value is true. All ranks have to do so together."""
    replicas = [each for each in target.models() if isinstance(each, nn.parallel.DistributedDataParallel)]
    if not replicas:
        raise CannotApply(name, "the model is not wrapped in DistributedDataParallel")
    return together([_one(each) for each in replicas])


def _one(model: nn.parallel.DistributedDataParallel) -> Undo:
    before = bool(model.gradient_as_bucket_view)
    _again(model, True)

    def undo() -> None:
        _again(model, before)

    return undo


def _again(model: nn.parallel.DistributedDataParallel, views: bool) -> None:
    if model.gradient_as_bucket_view == views:
        return
    module, group = model.module, model.process_group
    settings = {
        "device_ids": model.device_ids,
        "output_device": model.output_device if model.device_ids else None,
        "dim": model.dim,
        "broadcast_buffers": model.broadcast_buffers,
        "process_group": group,
        "bucket_cap_mb": model.bucket_bytes_cap // (1 << 20) or None,
        "find_unused_parameters": model.find_unused_parameters,
        "static_graph": model.static_graph,
        "gradient_as_bucket_view": views,
    }
    # What exchanges gradients is let go first, with its hooks: it is made when a module is wrapped, and cannot be changed.
    model.__dict__.pop("reducer", None)
    for parameter in module.parameters():
        parameter.grad = None
    training = model.training
    model.__init__(module, **settings)  # type: ignore[misc]
    model.train(training)
