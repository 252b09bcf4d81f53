"""`resize-before-upload`: images are resized on the host, before they are copied to the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, take_out


@lever("resize-before-upload", Stage.DATA, 30)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Resize batches: `value` is the new length of the shorter side, or height and width as a pair."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    if not pair and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise CannotApply(name, f"the value must be a length, or a height and a width, got {value!r}")

    def resize(batch: Any) -> Any:
        sides = {tuple(each.shape[-2:]) for each in _images(batch)}
        return _resize_entries(batch, {before: _resized(before, value) for before in sides})

    target.arrivals.append(resize)
    return lambda: take_out(target.arrivals, resize)


def _resized(sides: tuple[int, int], value: Any) -> tuple[int, int]:
    if not isinstance(value, int):
        return int(value[0]), int(value[1])
    shorter = min(sides)
    # Images are never enlarged.
    return (
        sides if shorter <= value else (round(sides[0] * value / shorter), round(sides[1] * value / shorter))
    )


def _images(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        image = value.dim() == 4 and (value.is_floating_point() or value.dtype == torch.uint8)
        return [value] if image else []
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [image for entry in entries for image in _images(entry)]


def _resize_entries(value: Any, sizes: dict[tuple[int, int], tuple[int, int]]) -> Any:
    if isinstance(value, torch.Tensor):
        wanted = sizes.get(tuple(value.shape[-2:])) if value.dim() in (3, 4) else None
        if wanted is None or wanted == tuple(value.shape[-2:]):
            return value
        if value.dim() == 4 and (value.is_floating_point() or value.dtype == torch.uint8):
            return functional.interpolate(value, wanted, mode="bilinear", antialias=True, align_corners=False)
        # Segmentation masks use nearest-neighbour sampling, since classes cannot be interpolated.
        planes = value if value.dim() == 4 else value.unsqueeze(1)
        small = functional.interpolate(planes.double(), wanted, mode="nearest-exact").to(value.dtype)
        return small if value.dim() == 4 else small.squeeze(1)
    if type(value) is dict:
        return {key: _resize_entries(entry, sizes) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resize_entries(entry, sizes) for entry in value)
    return value
