"""Augmentation of the pixels of a batch: like torchvision's functional transforms on float images, with
separate parameters for each image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Weights of red, green and blue in luminance, as in torchvision.
_GREY = (0.2989, 0.587, 0.114)


def floats(images: torch.Tensor) -> torch.Tensor:
    """Convert to floats from 0 to 1; integers are divided by the maximum of their type."""
    if images.is_floating_point():
        return images.to(torch.float32)
    most = float(torch.iinfo(images.dtype).max)
    if images.dtype == torch.uint16:
        # Few devices support arithmetic on this type, but all can widen it.
        images = images.to(torch.int32)
    return images.to(torch.float32) / most


def replace_images(images: torch.Tensor, which: Sequence[int], changed: torch.Tensor) -> torch.Tensor:
    """Return a batch with some images replaced."""
    if len(which) == len(images):
        return changed
    images = images.clone()
    images[list(which)] = changed
    return images


def mirrored(images: torch.Tensor, which: Sequence[bool]) -> torch.Tensor:
    """Flip the selected images vertically."""
    chosen = [number for number, wanted in enumerate(which) if wanted]
    return replace_images(images, chosen, images[chosen].flip(-2)) if chosen else images


def turned(
    images: torch.Tensor,
    matrices: Sequence[Sequence[float]],
    size: tuple[int, int],
    fill: Sequence[float],
    interpolation: str,
) -> torch.Tensor:
    """Resample images with matrices that map each pixel to its source, relative to the centre."""
    height, width = size
    device = images.device
    theta = torch.tensor(matrices, dtype=torch.float32, device=device).reshape(-1, 2, 3)
    across = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, width, device=device)
    down = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, height, device=device)
    base = torch.stack(
        [
            across.expand(height, width),
            down[:, None].expand(height, width),
            torch.ones(height, width, device=device),
        ],
        dim=-1,
    ).reshape(1, -1, 3)
    scaled = theta.transpose(1, 2) / torch.tensor([0.5 * width, 0.5 * height], device=device)
    grid = (base.expand(len(theta), -1, -1) @ scaled).reshape(len(theta), height, width, 2)
    # A channel of ones is resampled as well, to find pixels from outside of the image.
    whole = torch.cat([images, torch.ones_like(images[:, :1])], dim=1)
    moved = torch.nn.functional.grid_sample(
        whole, grid, mode=interpolation, padding_mode="zeros", align_corners=False
    )
    images, inside = moved[:, :-1], moved[:, -1:]
    paint = torch.tensor(fill, device=device)[:, None, None]
    if interpolation == "nearest":
        return torch.where(inside < 0.5, paint, images)
    return (images - paint) * inside + paint


def erased(
    images: torch.Tensor,
    parts: Sequence[tuple[int, int, int, int] | None],
    value: Sequence[float],
) -> torch.Tensor:
    """Fill a rectangle of each image: top, left, height and width."""
    if not any(parts):
        return images
    images = images.clone()
    paint = torch.tensor(value, device=images.device)[:, None, None]
    for image, part in zip(images, parts, strict=True):
        if part is not None:
            top, left, height, width = part
            image[:, top : top + height, left : left + width] = paint
    return images


def brightness(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Change the brightness."""
    return (images * _each(factors, images)).clamp(0, 1)


def contrast(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Blend with the image's mean luminance."""
    mean = grey(images)[:, :1].mean(dim=(-3, -2, -1), keepdim=True)
    return _blended(images, mean, factors)


def saturation(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Blend with greyscale."""
    return _blended(images, grey(images), factors)


def hue(images: torch.Tensor, turns: Sequence[float]) -> torch.Tensor:
    """Shift the hue by a fraction of the colour circle, by conversion to HSV and back."""
    least, most = images.aminmax(dim=1)
    spread = most - least
    same = spread == 0
    strength = spread / torch.where(same, 1.0, most)
    red, green, blue = ((most[:, None] - images) / torch.where(same, 1.0, spread)[:, None]).unbind(1)
    is_red, is_green = images[:, 0] == most, images[:, 1] == most
    angle = torch.where(is_red, blue - green, torch.where(is_green, 2 + red - blue, 4 + green - red))
    angle = torch.where(same, 0.0, (angle / 6 + 1).fmod(1))
    angle = (angle + _each(turns, images)[:, 0]).remainder(1)
    sixths = angle * 6
    side = sixths.floor()
    part = sixths - side
    low = (most * (1 - strength)).clamp(0, 1)
    falls = (most * (1 - strength * part)).clamp(0, 1)
    rises = (most * (1 - strength * (1 - part))).clamp(0, 1)
    levels = torch.stack([most, low, falls, rises], dim=1)
    # The index into `levels` for each channel and sixth of the colour circle.
    takes = torch.tensor([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]], device=images.device)
    chosen = takes[:, side.long().remainder(6)].movedim(0, 1)
    return levels.gather(1, chosen)


def grey(images: torch.Tensor) -> torch.Tensor:
    """Convert to greyscale, with the same number of channels."""
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(_GREY, device=images.device)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True).expand_as(images)


def _each(values: Sequence[float], images: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=images.dtype, device=images.device)[:, None, None, None]


def _blended(images: torch.Tensor, other: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    factor = _each(factors, images)
    return (images * factor + other * (1 - factor)).clamp(0, 1)
