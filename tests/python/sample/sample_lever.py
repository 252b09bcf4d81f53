"""`sample-lever`: a lever that exists in tests only; it counts how often it is applied."""

from __future__ import annotations

from typing import Any

from .registry import Stage, lever
from .target import Target, Undo


@lever("sample-lever", Stage.MODEL, 999)
def apply(target: Target, value: Any, _name: str) -> Undo:
    """Note the value on the model."""
    before = list(target.notes)
    target.notes.append(f"{value} tensors are forgotten")

    def undo() -> None:
        target.notes[:] = before

    return undo
