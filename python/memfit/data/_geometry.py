"""What belongs to a picture, moved along with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    return _moved_rows(
        target,
        size,
        mask=lambda mask: move_mask(mask, mapping, size),
        points=lambda points: move_points(points, mapping),
        boxes=lambda boxes: move_boxes(boxes, mapping, size),
        larger=abs(float(mapping[0]) * float(mapping[2])),
    )


def moved_by_matrix(target: Any, matrix: Sequence[float], size: tuple[int, int]) -> Any:
    """A target of an image (height, width) as it is once points have moved by a matrix: `x' = m0 x + m1 y +
    m2`, and y' by the other three. What comes into a mask from outside is 0.
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
    """A dictionary whose parts are moved, an area becoming so many times larger."""
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
