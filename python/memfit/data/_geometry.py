"""What belongs to a picture, moved along with it."""

from __future__ import annotations

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
