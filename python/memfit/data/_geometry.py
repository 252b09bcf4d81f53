"""What belongs to a picture, moved along with it."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch


def move_points(points: Any, mapping: Any) -> torch.Tensor:
    """Points as `[..., 2]` in the picture's pixels, where they lie in the image that a mapping belongs to."""
    a, b, c, d = (float(part) for part in mapping)
    moved = torch.as_tensor(points, dtype=torch.float64).clone()
    moved[..., 0] = moved[..., 0] * a + b
    moved[..., 1] = moved[..., 1] * c + d
    return moved


def move_boxes(boxes: Any, mapping: Any, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Boxes as `[..., 4]` of left, top, right, bottom, where they lie in the image that a mapping belongs to.

    With `size` (height, width), they are cut off at the image's edges; one that lies outside is left without
    area.
    """
    moved = torch.as_tensor(boxes, dtype=torch.float64)
    corners = move_points(moved.reshape(*moved.shape[:-1], 2, 2), mapping)
    low, high = corners.amin(dim=-2), corners.amax(dim=-2)
    if size is not None:
        height, width = size
        edges = torch.tensor([width, height], dtype=torch.float64)
        low, high = low.clamp(min=0).minimum(edges), high.clamp(min=0).minimum(edges)
    return torch.cat([low, high], dim=-1)


def move_mask(mask: torch.Tensor, mapping: Any, size: tuple[int, int]) -> torch.Tensor:
    """A mask as `[..., height, width]` of the picture, as it lies in the image (height, width) that a mapping
    belongs to.

    Each pixel takes the value of the picture's nearest one, so that classes are not mixed.
    """
    a, b, c, d = (float(part) for part in mapping)
    height, width = size
    columns = ((torch.arange(width, dtype=torch.float64) + 0.5 - b) / a).floor().long()
    rows = ((torch.arange(height, dtype=torch.float64) + 0.5 - d) / c).floor().long()
    rows, columns = rows.clamp(0, mask.shape[-2] - 1), columns.clamp(0, mask.shape[-1] - 1)
    return mask[..., rows[:, None], columns]


# What a target says of each thing in the picture, a row each.
_ROWS = ("boxes", "labels", "masks", "keypoints", "area", "iscrowd", "classes", "scores")


def followed(target: Any, mapping: Any, size: tuple[int, int]) -> Any:
    """A target as it is for the image (height, width) that a mapping belongs to.

    Of a dictionary, `boxes` (left, top, right, bottom), `keypoints` and `points`, `masks` and `mask` are
    moved, and `area` is scaled. Boxes are cut off at the edges; what loses its box is left out with its row
    of everything else, and keypoints outside become invisible. A mask alone, as a tensor, an array or a path,
    is moved as well.
    """
    if isinstance(target, dict):
        return _followed_rows(target, mapping, size)
    if isinstance(target, (str, PathLike)):
        return move_mask(_read_mask(target), mapping, size)
    mask = torch.as_tensor(target) if hasattr(target, "shape") else None
    if mask is None or mask.ndim < 2:
        raise TypeError(
            f"follow=True goes with dictionaries and masks, and this target is {target!r}: leave it out"
        )
    return move_mask(mask, mapping, size)


def _followed_rows(target: dict[str, Any], mapping: Any, size: tuple[int, int]) -> dict[str, Any]:
    height, width = size
    moved = dict(target)
    for name in ("mask", "masks"):
        if name in target:
            mask = target[name]
            mask = _read_mask(mask) if isinstance(mask, (str, PathLike)) else torch.as_tensor(mask)
            moved[name] = move_mask(mask, mapping, size)
    for name in ("points", "keypoints"):
        if name not in target:
            continue
        points = _floats(target[name])
        places = move_points(points[..., :2], mapping).to(points.dtype)
        moved[name] = places
        if points.shape[-1] > 2:
            inside = ((places >= 0) & (places < torch.tensor([width, height]))).all(dim=-1, keepdim=True)
            moved[name] = torch.cat([places, points[..., 2:] * inside], dim=-1)
    if "area" in target:
        moved["area"] = _floats(target["area"]) * abs(float(mapping[0]) * float(mapping[2]))
    if "boxes" not in target:
        return moved
    given = _floats(target["boxes"])
    boxes = move_boxes(given.reshape(-1, 4), mapping, size).to(given.dtype)
    kept = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(dim=1)
    for name in _ROWS:
        if name in moved and name != "boxes" and len(moved[name]) == len(kept):
            rows = moved[name]
            chosen = [row for row, keep in zip(rows, kept.tolist(), strict=True) if keep]
            moved[name] = torch.as_tensor(rows)[kept] if hasattr(rows, "shape") else chosen
    moved["boxes"] = boxes[kept]
    return moved


def _floats(given: Any) -> torch.Tensor:
    """Numbers of places: as they are, or whole ones as floats."""
    found = torch.as_tensor(given)
    return found if found.is_floating_point() else found.to(torch.float32)


def _read_mask(path: Any) -> torch.Tensor:
    """The values of a mask's file, undivided and unmixed."""
    from memfit.data._decode import decode

    mask: torch.Tensor = decode(path, mode="keep", margin=None)
    if len(mask) != 1:
        raise ValueError(
            f"{path} has {len(mask)} bands, and a mask has one; colours are no classes: read it in a data set of your own"
        )
    return mask[0].to(torch.int64)
