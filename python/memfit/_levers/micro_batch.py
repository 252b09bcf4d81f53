"""`micro-batch`: gradient accumulation over micro-batches. The code that runs the step divides the batch."""

from __future__ import annotations

from typing import Any

from .registry import Stage, lever
from .target import CannotApply, Target, Undo


@lever("micro-batch", Stage.STEP, 40)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Set the micro-batch size; `value` is a number of samples."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CannotApply(name, f"the value must be a number of samples, at least 1, got {value!r}")
    before, target.micro_batch = target.micro_batch, value

    def undo() -> None:
        target.micro_batch = before

    return undo
