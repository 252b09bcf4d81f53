"""Raises a clear error if a model calls parts of a module that has to be called itself.

FSDP2 gathers the parameters of a block, and tensor parallelism converts its inputs, when the block is called.
A model that calls `block.attention(x)` instead would otherwise fail in some operation that gets slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .degrees import ParallelError


def watch_calls(model: nn.Module, names: Iterable[str]) -> None:
    """Let the first call of a part of one of these modules fail, unless the module was called before."""
    known = dict(model.named_modules())
    for name in names:
        _watch(type(model).__name__, name, known[name])


def _watch(model: str, name: str, module: nn.Module) -> None:
    handles: list[Any] = []
    # FSDP2 gives it another one.
    kind = type(module).__name__

    def is_called(_module: nn.Module, _args: Any) -> None:
        # Compiled code keeps its hooks.
        while handles and not torch.compiler.is_compiling():
            handles.pop().remove()

    def guard(path: str) -> Any:
        def refuse(_module: nn.Module, _args: Any) -> None:
            if torch.compiler.is_compiling():
                return
            raise ParallelError(
                f"{model} calls `{name}.{path}` without calling `{name}`, at whose call the ranks exchange its "
                "parameters",
                f"call `{name}` itself: move what the model does with its parts into the `forward` of {kind}",
            )

        return refuse

    handles.append(module.register_forward_pre_hook(is_called, prepend=True))
    for path, each in module.named_modules():
        if path and any(True for _ in each.parameters(recurse=False)):
            handles.append(each.register_forward_pre_hook(guard(path), prepend=True))
