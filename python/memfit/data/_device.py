"""What is done to a whole batch where it lies, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Normalize(torch.nn.Module):
    """From integers to normalised floats, in one kernel: `(image / 255 - mean) / std`.

    The batch crosses to the device as integers, a quarter of the bytes, and becomes floats there. Integers
    count from 0 to the greatest of their type; floats are taken as they are.
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
                f"mean={tuple(mean)} and std={tuple(std)} are no means and deviations of the same bands"
            )
        self.dtype = dtype
        spread = torch.tensor(std, dtype=torch.float64)
        middle = torch.tensor(mean, dtype=torch.float64)
        self.register_buffer("factor", (1 / spread).reshape(-1, 1, 1).to(torch.float32), persistent=False)
        self.register_buffer(
            "offset", (-middle / spread).reshape(-1, 1, 1).to(torch.float32), persistent=False
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images as `[..., channels, height, width]`."""
        most = 1.0 if images.is_floating_point() else float(torch.iinfo(images.dtype).max)
        factor = (self.factor / most).to(images.device)
        offset = self.offset.to(images.device)
        if images.dtype == torch.uint16:
            # Arithmetic knows this type on few devices; every one can widen it.
            images = images.to(torch.int32)
        return torch.addcmul(offset, images, factor).to(self.dtype)


class ColorJitter(torch.nn.Module):
    """Brightness, contrast and saturation, each image's own, in two passes over the batch.

    Each is a factor drawn evenly from `1 - x` to `1 + x`, or between two given ones, and applied in this
    order, as torchvision's `adjust_brightness`, `adjust_contrast` and `adjust_saturation` do, but for values
    being cut off only at the end. What comes out is float, from 0 to 1: integers count from 0 to the greatest
    of their type.
    """

    # Weights of red, green and blue in brightness, as torchvision has them.
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
        """Images as `[batch, 3, height, width]`."""
        count, bands, height, width = images.shape
        if bands != 3:
            raise ValueError(f"colours are three bands, and there are {bands}")
        most = 1.0 if images.is_floating_point() else float(torch.iinfo(images.dtype).max)
        # Drawn on the CPU, so that they are the same on every device.
        drawn = torch.rand(3, count, generator=self.generator)
        low, high = (torch.tensor(ends)[:, None] for ends in zip(*self.ranges, strict=True))
        light, contrast, colour = (low + drawn * (high - low)).to(images.device)[:, :, None, None]
        values = images.to(torch.float32).reshape(count, 3, -1)
        grey = torch.tensor([self._GREY], device=images.device)
        ones = torch.ones(3, 1, device=images.device)
        same = torch.eye(3, device=images.device)
        # All three are of the form `matrix @ colour + offset`, and so is one after the other.
        mean = grey @ (values.mean(-1, keepdim=True) / most) * light
        offset = (1 - contrast) * mean * ones
        toward_grey = colour * same + (1 - colour) * (ones @ grey)
        matrix = toward_grey * (contrast * light / most)
        mixed = torch.baddbmm(toward_grey @ offset, matrix, values)
        return mixed.clamp_(0, 1).reshape(count, 3, height, width)


def _factors(value: float | tuple[float, float]) -> tuple[float, float]:
    low, high = value if isinstance(value, (tuple, list)) else (max(0.0, 1 - value), 1 + value)
    if not 0 <= low <= high:
        raise ValueError(f"{value!r} is no range of factors")
    return float(low), float(high)
