"""What is done to a whole batch where it lies, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Normalize(torch.nn.Module):
    """From integers to normalised floats, in one kernel: `(image / 255 - mean) / std`.

    The batch crosses to the device as integers, a quarter of the bytes, and becomes floats there. Integers count from 0
    to the greatest of their type; floats are taken as they are.
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
