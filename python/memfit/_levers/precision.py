"""`autocast-bf16`, `autocast-fp16`, `tf32`: lower precision for suitable operations, with weights in fp32."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, take_out

_TYPES = {"autocast-bf16": torch.bfloat16, "autocast-fp16": torch.float16}


@lever("autocast-bf16", Stage.STEP, 10)
@lever("autocast-fp16", Stage.STEP, 20)
@lever("tf32", Stage.STEP, 30)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Enable it; `value` is true."""
    if not value:
        raise CannotApply(name, "the value must be true")
    if name == "tf32":
        return _tf32()
    place, scales = target.place(), target.scales

    def context() -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(place.type, dtype=_TYPES[name])

    target.contexts.append(context)
    target.scales = scales or name == "autocast-fp16"

    def undo() -> None:
        take_out(target.contexts, context)
        target.scales = scales

    return undo


def _tf32() -> Undo:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (products.allow_tf32, convolutions.allow_tf32)
    products.allow_tf32 = convolutions.allow_tf32 = True

    def undo() -> None:
        products.allow_tf32, convolutions.allow_tf32 = before

    return undo
