"""Transforms for a whole batch on its device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Normalize(torch.nn.Module):
    """Convert images to normalised floats in one pass over the batch: `(image / max - mean) / std`.

    `max` is the maximum of an integer type, such as 255, and 1 for floats. The batch is copied to the device
    as integers, for `uint8` a quarter of the bytes, and converted there.
    """

    def __init__(
        self,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or any(not part > 0 for part in std):
            raise ValueError(
                f"mean={tuple(mean)} and std={tuple(std)} need the same number of channels, and every std "
                "above 0"
            )
        self.dtype = dtype
        spread = torch.tensor(std, dtype=torch.float64)
        middle = torch.tensor(mean, dtype=torch.float64)
        self.register_buffer("factor", (1 / spread).reshape(-1, 1, 1).to(torch.float32), persistent=False)
        self.register_buffer(
            "offset", (-middle / spread).reshape(-1, 1, 1).to(torch.float32), persistent=False
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise images `[..., channels, height, width]`."""
        most = 1.0 if images.is_floating_point() else float(torch.iinfo(images.dtype).max)
        factor = (self.factor / most).to(images.device)
        offset = self.offset.to(images.device)
        if images.dtype == torch.uint16:
            # Few devices support arithmetic on this type, but all can widen it.
            images = images.to(torch.int32)
        return torch.addcmul(offset, images, factor).to(self.dtype)


class ColorJitter(torch.nn.Module):
    """Changes brightness, contrast and saturation per image, in two passes over the batch.

    Each is a factor drawn uniformly from `1 - x` to `1 + x`, or between two given ones, and applied in this
    order, like torchvision's `adjust_brightness`, `adjust_contrast` and `adjust_saturation`, except that
    values are clamped only at the end. The result is float, from 0 to 1: integers are divided by the maximum
    of their type.
    """

    # Weights of red, green and blue in luminance, as in torchvision.
    _GREY = (0.2989, 0.587, 0.114)

    def __init__(
        self,
        brightness: float | tuple[float, float] = 0.0,
        contrast: float | tuple[float, float] = 0.0,
        saturation: float | tuple[float, float] = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.ranges = [_factors(value) for value in (brightness, contrast, saturation)]
        self.generator = generator

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Change images `[batch, 3, height, width]`."""
        count, bands, height, width = images.shape
        if bands != 3:
            raise ValueError(f"colour changes need images with three channels, got {bands}")
        most = 1.0 if images.is_floating_point() else float(torch.iinfo(images.dtype).max)
        # Drawn on the CPU, so that they are the same for every device.
        drawn = torch.rand(3, count, generator=self.generator)
        low, high = (torch.tensor(ends)[:, None] for ends in zip(*self.ranges, strict=True))
        light, contrast, colour = (low + drawn * (high - low)).to(images.device)[:, :, None, None]
        values = images.to(torch.float32).reshape(count, 3, -1)
        grey = torch.tensor([self._GREY], device=images.device)
        ones = torch.ones(3, 1, device=images.device)
        same = torch.eye(3, device=images.device)
        # All three have the form `matrix @ colour + offset`, and so has their composition.
        mean = grey @ (values.mean(-1, keepdim=True) / most) * light
        offset = (1 - contrast) * mean * ones
        toward_grey = colour * same + (1 - colour) * (ones @ grey)
        matrix = toward_grey * (contrast * light / most)
        mixed = torch.baddbmm(toward_grey @ offset, matrix, values)
        return mixed.clamp_(0, 1).reshape(count, 3, height, width)


def _factors(value: float | tuple[float, float]) -> tuple[float, float]:
    low, high = value if isinstance(value, (tuple, list)) else (max(0.0, 1 - value), 1 + value)
    if not 0 <= low <= high:
        raise ValueError(f"{value!r} has to be a range of factors (low, high), both not negative")
    return float(low), float(high)
