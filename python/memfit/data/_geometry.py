"""Moves targets along with an image: points, boxes and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch


def move_points(points: Any, mapping: Any) -> torch.Tensor:
    """Map points `[..., 2]` from the source image's pixels to those of a decoded image."""
    a, b, c, d = (float(part) for part in mapping)
    moved = torch.as_tensor(points, dtype=torch.float64).clone()
    moved[..., 0] = moved[..., 0] * a + b
    moved[..., 1] = moved[..., 1] * c + d
    return moved


def move_boxes(boxes: Any, mapping: Any, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Map boxes `[..., 4]` (left, top, right, bottom) from the source image to a decoded image.

    With `size` (height, width), they are clipped to the image; a box outside becomes empty.
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
    """Map a mask `[..., height, width]` of the source image to a decoded image (height, width).

    Each pixel takes the value of the nearest source pixel, so classes are not mixed.
    """
    a, b, c, d = (float(part) for part in mapping)
    height, width = size
    columns = ((torch.arange(width, dtype=torch.float64) + 0.5 - b) / a).floor().long()
    rows = ((torch.arange(height, dtype=torch.float64) + 0.5 - d) / c).floor().long()
    rows, columns = rows.clamp(0, mask.shape[-2] - 1), columns.clamp(0, mask.shape[-1] - 1)
    return mask[..., rows[:, None], columns]


# Entries of a target with one row per object.
_ROWS = ("boxes", "labels", "masks", "keypoints", "area", "iscrowd", "classes", "scores")


def followed(target: Any, mapping: Any, size: tuple[int, int]) -> Any:
    """Map a target to the decoded image (height, width).

    In a dictionary, `boxes` (left, top, right, bottom), `keypoints` and `points`, `masks` and `mask` are
    moved, and `area` is scaled. Boxes are clipped to the image; an object that loses its box is removed from
    all entries, and keypoints outside become invisible. A mask alone, as a tensor, an array or a path, is
    moved as well.
    """
    if isinstance(target, dict):
        return _followed_rows(target, mapping, size)
    if isinstance(target, (str, PathLike)):
        return move_mask(_read_mask(target), mapping, size)
    mask = torch.as_tensor(target) if hasattr(target, "shape") else None
    if mask is None or mask.ndim < 2:
        raise TypeError(
            f"follow=True needs targets that are dictionaries or masks, got {target!r}: leave it out"
        )
    return move_mask(mask, mapping, size)


def _followed_rows(target: dict[str, Any], mapping: Any, size: tuple[int, int]) -> dict[str, Any]:
    return _moved_rows(
        target,
        size,
        mask=lambda mask: move_mask(mask, mapping, size),
        points=lambda points: move_points(points, mapping),
        boxes=lambda boxes: move_boxes(boxes, mapping, size),
        larger=abs(float(mapping[0]) * float(mapping[2])),
    )


def moved_by_matrix(target: Any, matrix: Sequence[float], size: tuple[int, int]) -> Any:
    """Move a target of an image (height, width) by a matrix: `x' = m0 x + m1 y + m2`, and y' by the other
    three. Mask pixels from outside of the image are 0.
    """
    a, b, c, d, e, f = matrix

    def points(given: Any) -> torch.Tensor:
        places = torch.as_tensor(given, dtype=torch.float64)
        x, y = places[..., 0], places[..., 1]
        return torch.stack([a * x + b * y + c, d * x + e * y + f], dim=-1)

    def boxes(given: Any) -> torch.Tensor:
        left, top, right, bottom = torch.as_tensor(given, dtype=torch.float64).unbind(-1)
        corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
        moved = points(corners.reshape(*corners.shape[:-1], 4, 2))
        edges = torch.tensor([size[1], size[0]], dtype=torch.float64)
        low, high = (end.clamp(min=0).minimum(edges) for end in (moved.amin(-2), moved.amax(-2)))
        return torch.cat([low, high], dim=-1)

    def mask(given: torch.Tensor) -> torch.Tensor:
        height, width = size
        area = a * e - b * d
        x = torch.arange(width, dtype=torch.float64) + 0.5 - c
        y = (torch.arange(height, dtype=torch.float64) + 0.5 - f)[:, None]
        columns, rows = ((e * x - b * y) / area).floor().long(), ((a * y - d * x) / area).floor().long()
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        found = given[..., rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
        return torch.where(inside, found, torch.zeros((), dtype=found.dtype))

    if not isinstance(target, dict):
        return mask(target)
    return _moved_rows(target, size, mask, points, boxes, abs(a * e - b * d))


def _moved_rows(
    target: dict[str, Any],
    size: tuple[int, int],
    mask: Callable[[torch.Tensor], torch.Tensor],
    points: Callable[[Any], torch.Tensor],
    boxes: Callable[[Any], torch.Tensor],
    larger: float,
) -> dict[str, Any]:
    """Move the entries of a dictionary, and scale areas by `larger`."""
    height, width = size
    moved = dict(target)
    for name in ("mask", "masks"):
        if name in target:
            given = target[name]
            moved[name] = mask(
                _read_mask(given) if isinstance(given, (str, PathLike)) else torch.as_tensor(given)
            )
    for name in ("points", "keypoints"):
        if name not in target:
            continue
        given = _floats(target[name])
        places = points(given[..., :2]).to(given.dtype)
        moved[name] = places
        if given.shape[-1] > 2:
            inside = ((places >= 0) & (places < torch.tensor([width, height]))).all(dim=-1, keepdim=True)
            moved[name] = torch.cat([places, given[..., 2:] * inside], dim=-1)
    if "area" in target:
        moved["area"] = _floats(target["area"]) * larger
    if "boxes" not in target:
        return moved
    given = _floats(target["boxes"])
    placed = boxes(given.reshape(-1, 4)).to(given.dtype)
    kept = ((placed[:, 2:] - placed[:, :2]) > 0).all(dim=1)
    for name in _ROWS:
        if name in moved and name != "boxes" and len(moved[name]) == len(kept):
            rows = moved[name]
            chosen = [row for row, keep in zip(rows, kept.tolist(), strict=True) if keep]
            moved[name] = torch.as_tensor(rows)[kept] if hasattr(rows, "shape") else chosen
    moved["boxes"] = placed[kept]
    return moved


def _floats(given: Any) -> torch.Tensor:
    """Return numbers as floats; floats keep their type."""
    found = torch.as_tensor(given)
    return found if found.is_floating_point() else found.to(torch.float32)


def _read_mask(path: Any) -> torch.Tensor:
    """Read a mask file's values without scaling or blending."""
    from memfit.data._decode import decode

    mask: torch.Tensor = decode(path, mode="keep", margin=None)
    if len(mask) != 1:
        raise ValueError(
            f"{path} has {len(mask)} channels, but a mask has one; to convert colours to classes, read it in "
            "your own data set"
        )
    return mask[0].to(torch.int64)
