"""Mixes the images of a batch: each with the previous one, and its label likewise."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch


class _Mix:
    """The common part: checks the settings and mixes labels."""

    def __init__(self, classes: int, alpha: float = 1.0) -> None:
        if classes < 1 or not alpha > 0:
            raise ValueError(f"classes={classes} and alpha={alpha} have to be above 0")
        self.classes = classes
        self.alpha = alpha

    def _labels(self, labels: Any, own: float) -> torch.Tensor:
        """Return the class probabilities (soft labels) of mixed labels."""
        if not isinstance(labels, torch.Tensor) or labels.ndim not in (1, 2):
            raise TypeError(
                "mixing needs labels that are class numbers, or one row of class shares per image"
            )
        if labels.ndim == 1:
            if labels.is_floating_point() or int(labels.max()) >= self.classes or int(labels.min()) < 0:
                raise ValueError(
                    f"mixing needs labels that are numbers of {self.classes} classes, starting at 0"
                )
            labels = torch.nn.functional.one_hot(labels.long(), self.classes)
        shares = labels.to(torch.float32)
        return shares * own + shares.roll(1, 0) * (1 - own)


class MixUp(_Mix):
    """Blends each image with the previous one, by a share drawn from Beta(alpha, alpha): like torchvision's
    `MixUp`.
    """

    def __call__(
        self, images: torch.Tensor, labels: Any, random: Random
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mixed float images and labels."""
        own = random.betavariate(self.alpha, self.alpha)
        return images * own + images.roll(1, 0) * (1 - own), self._labels(labels, own)


class CutMix(_Mix):
    """Pastes a rectangle of the previous image into each image, with an area drawn from Beta(alpha, alpha):
    like torchvision's `CutMix`.
    """

    def __call__(
        self, images: torch.Tensor, labels: Any, random: Random
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mixed float images and labels."""
        height, width = images.shape[-2:]
        own = random.betavariate(self.alpha, self.alpha)
        x, y = random.randrange(width), random.randrange(height)
        half = 0.5 * math.sqrt(1 - own)
        across, down = int(half * width), int(half * height)
        left, right = max(x - across, 0), min(x + across, width)
        top, bottom = max(y - down, 0), min(y + down, height)
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
        return mixed, self._labels(labels, 1 - (right - left) * (bottom - top) / (width * height))
