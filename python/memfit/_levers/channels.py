"""`prune-channels`: channels are removed from the layers by the library torch-pruning (structured pruning).

The library traces one call of the model to find the layers that share channels, and replaces their parameters
by smaller ones. The output layers keep their width. Values decide which channels go, but no size depends on
them: on a device that computes no values, random channels are removed.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .frozen import head
from .registry import Stage, lever
from .replacing import regroup
from .several import models
from .target import CannotApply, Target, Undo, percentage
from .wrapping import together


@lever("prune-channels", Stage.MODEL, 4)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Remove the channels with the smallest norms: `value` is a percentage."""
    share = percentage(value, name)
    try:
        import torch_pruning
    except ImportError as error:
        raise CannotApply(name, "torch-pruning is not installed: `pip install torch-pruning`") from error
    several = models(target.model)
    if len(several) > 1:
        raise CannotApply(name, "several models train together, and one call of one of them is traced")
    if target.example is None:
        raise CannotApply(name, "it needs the arguments of a call of the model")
    (model,) = several
    args, kwargs = target.example
    before = dict(model.named_parameters())
    snapshot = _Snapshot(model)
    importance = (
        torch_pruning.importance.MagnitudeImportance(p=2)
        if target.computes
        else torch_pruning.importance.RandomImportance()
    )
    last = {id(each) for each in head(model)}
    ignored = [
        module for module in model.modules() if any(id(each) in last for each in module._parameters.values())
    ]
    trains = {path: each.requires_grad for path, each in before.items()}
    try:
        pruner = torch_pruning.pruner.BasePruner(
            model,
            kwargs or args,
            importance=importance,
            pruning_ratio=share / 100,
            ignored_layers=ignored,
        )
        pruner.step()
    except Exception as error:
        snapshot.restore()
        raise CannotApply(
            name, f"torch-pruning cannot trace the model: {type(error).__name__}: {error}"
        ) from error
    after = dict(model.named_parameters())
    if all(each.shape == after[path].shape for path, each in before.items()):
        snapshot.restore()
        raise CannotApply(name, "torch-pruning finds no channels that it could remove")
    for path, each in after.items():
        each.requires_grad_(trains[path])
    changed = {each: [after[path]] for path, each in before.items() if after[path] is not each}
    undone = regroup(target.optimizers, changed)
    if not target.undoes:
        # The snapshot would keep the original weights in memory.
        return lambda: None

    def undo() -> None:
        together(undone)()
        snapshot.restore()

    return undo


class _Snapshot:
    """The parameters, buffers and sizes of all modules."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (
                module,
                dict(module._parameters),
                dict(module._buffers),
                {key: value for key, value in vars(module).items() if isinstance(value, (int, tuple))},
            )
            for module in model.modules()
        ]

    def restore(self) -> None:
        for module, parameters, buffers, sizes in self._kept:
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
            vars(module).update(sizes)
