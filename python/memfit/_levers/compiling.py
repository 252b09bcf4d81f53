"""`compile`: fused kernels, which keep intermediate results out of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .blocks import blocks
from .registry import Stage, lever
from .target import CannotApply, Target, Undo, modules
from .wrapping import all_or_none, together


@lever("compile", Stage.MODEL, 120)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Compile the model in place: `value` is true, a mode, a list of modules, "blocks", or a table of
    `torch.compile`'s keyword arguments with `modules`.
    """
    settings = dict(value) if isinstance(value, dict) else {}
    chosen: Any = settings.pop("modules", None)
    if isinstance(value, list) or value == "blocks":
        chosen = value
    elif isinstance(value, str):
        settings["mode"] = value
    if chosen == "blocks":
        chosen = blocks(target.model)
        if not chosen:
            raise CannotApply(name, "the model has no repeated blocks to compile separately")
    # Micro-batches differ in size, and each new size would be recompiled.
    settings.setdefault("dynamic", None)
    before = target.compiled
    known: dict[Any, Any] = {}

    def compiled(function: Any) -> Any:
        if function not in known:
            known[function] = torch.compile(function, **settings)
        return known[function]

    def back() -> None:
        target.compiled = before

    undo = all_or_none(
        _one(module, settings) for module in (modules(target, name, chosen) if chosen else target.models())
    )
    target.compiled = compiled
    return together([back, undo])


def _one(module: nn.Module, settings: dict[str, Any]) -> Undo:
    name = "_compiled_call_impl"
    before = module.__dict__.get(name)
    module.compile(**settings)

    def undo() -> None:
        if before is None:
            module.__dict__.pop(name, None)
        else:
            module._compiled_call_impl = before

    return undo
