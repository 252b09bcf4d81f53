"""`gradient-as-bucket-view`: under DistributedDataParallel, gradients are views of the all-reduce buckets, so
they are stored once.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from .registry import Stage, lever
from .target import CannotApply, Target, Undo
from .wrapping import together


@lever("gradient-as-bucket-view", Stage.MODEL, 110)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Initialise the DDP wrapper again in place; `value` is `True`. All ranks have to do so together."""
    replicas = [each for each in target.models() if isinstance(each, nn.parallel.DistributedDataParallel)]
    if not replicas:
        raise CannotApply(name, "the model is not wrapped in DistributedDataParallel")
    for each in replicas:
        why = _fixed(each)
        if why is not None:
            raise CannotApply(name, f"{why}; wrap the model with `gradient_as_bucket_view=True` instead")
    return together([_one(each) for each in replicas])


def _fixed(model: nn.parallel.DistributedDataParallel) -> str | None:
    """Return the reason why a wrapper cannot be initialised again, or `None`."""
    if model.gradient_as_bucket_view:
        return None
    if getattr(model, "mixed_precision", None) is not None:
        return (
            "DistributedDataParallel keeps the weights in two types (`mixed_precision`), with its own hooks "
            "on each module"
        )
    if getattr(model, "_delay_all_reduce_params", None):
        return "gradients of some parameters are exchanged separately (`delay_all_reduce_named_params`)"
    named = model._get_ddp_logging_data().get("comm_hook")
    if named and not getattr(model, "_comm_hooks", None):
        return f"gradients are exchanged by {named}, a built-in hook that cannot be registered again"
    return None


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
        "process_group": group,
        "bucket_cap_mb": model.bucket_bytes_cap // (1 << 20) or None,
        "find_unused_parameters": model.find_unused_parameters,
        "static_graph": model.static_graph,
        "gradient_as_bucket_view": views,
    }
    taken = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    # Ranks are in sync already.
    if "init_sync" in taken:
        settings["init_sync"] = False
    syncs = "forward_sync_buffers" if "forward_sync_buffers" in taken else "broadcast_buffers"
    settings[syncs] = model.broadcast_buffers
    for key in ("skip_all_reduce_unused_params", "batched_grad_copy", "lazy_bucket_allocation"):
        if key in taken and hasattr(model, key):
            settings[key] = getattr(model, key)
    # Hooks stay in the same dictionaries, which their handles refer to.
    kept = {key: held for key, held in model.__dict__.items() if key in _OWN and "hook" in key}
    kept |= {key: model.__dict__[key] for key in ("training", "require_backward_grad_sync")}
    exchanges = list(getattr(model, "_comm_hooks", ()))
    # The reducer, with its hooks on the parameters, is deleted first: it is created when a module is wrapped,
    # and cannot be changed.
    model.__dict__.pop("reducer", None)
    for parameter in module.parameters():
        parameter.grad = None
    model.__init__(module, **settings)  # type: ignore[misc]
    model.__dict__.update(kept)
    for hook, state in exchanges:
        model.register_comm_hook(state, hook)


_OWN = frozenset(nn.Module().__dict__)
