"""`Augment`: random augmentation of images, drawn per sample from its position instead of its order of
arrival.

The random parameters are a function of (seed, epoch, sample), so neither threads, worker processes, the batch
size nor a resumed run change them. They are applied to whole batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from memfit.data import _augment_pixels as pixels
from memfit.data._geometry import moved_by_matrix
from memfit.data._mix import CutMix, MixUp

# The names and order of torchvision's `ColorJitter`.
_COLOUR_CHANGES = ("brightness", "contrast", "saturation", "hue")
# Number of attempts to draw a rectangle to erase, before none is erased.
_MAX_ATTEMPTS = 10


@dataclass(frozen=True)
class Drawn:
    """The augmentation parameters of one image."""

    mirrored: bool
    """Flip vertically."""
    angle: float
    """Degrees, clockwise."""
    translate: tuple[float, float]
    """Pixels to the right and down."""
    zoom: float
    """The scale factor."""
    shear: tuple[float, float]
    """Degrees, horizontally and vertically."""
    factors: tuple[float, float, float, float]
    """Factors of brightness, contrast and saturation, and the hue shift."""
    order: tuple[int, ...]
    """The order in which these four are applied."""
    grey: bool
    """Convert to greyscale."""
    erased: tuple[int, int, int, int] | None
    """Top, left, height and width of the erased rectangle."""

    @property
    def moves(self) -> bool:
        """`True` if points of the image change their position."""
        return self.mirrored or self.turns

    @property
    def turns(self) -> bool:
        """`True` if pixels have to be resampled."""
        return self.angle != 0 or self.zoom != 1 or any(self.translate) or any(self.shear)

    def matrix(self, size: tuple[int, int]) -> list[float]:
        """Return the matrix that moves points of an image of this height and width: `x' = m0 x + m1 y + m2`,
        and y' by the other three.
        """
        height, width = size
        a, b, c, d, e, f = _matrix(self, (width / 2, height / 2))
        # The flip comes first.
        return [a, -b, b * height + c, d, -e, e * height + f] if self.mirrored else [a, b, c, d, e, f]


class Augment:
    """Random augmentation of each image: `ImageLoader(…, augment=Augment(rotate=15, brightness=0.4))`.

    In this order: flipped vertically (`vertical_flip`, a probability), rotated by up to `rotate` degrees,
    translated by up to `translate` (shares of width and height), zoomed, sheared by up to `shear` degrees;
    brightness, contrast, saturation and hue changed in random order; converted to greyscale (`grayscale`, a
    probability), a rectangle erased (`erase`, a probability) and finally normalised by `normalize` (means,
    standard deviations). All have the meaning of torchvision's v2 transforms, and ranges may be given as
    (low, high).

    Images are returned as floats from 0 to 1, or normalised. With `device`, batches are copied there and
    augmented there. With the loader's `follow=True`, targets are moved along. `mix` mixes the images of each
    batch: a `MixUp`, a `CutMix`, or several, one of which is drawn for each batch.
    """

    def __init__(
        self,
        *,
        vertical_flip: float = 0.0,
        rotate: float | tuple[float, float] = 0.0,
        translate: tuple[float, float] = (0.0, 0.0),
        zoom: tuple[float, float] = (1.0, 1.0),
        shear: float | tuple[float, float] = 0.0,
        fill: float | Sequence[float] = 0.0,
        interpolation: str = "bilinear",
        brightness: float | tuple[float, float] = 0.0,
        contrast: float | tuple[float, float] = 0.0,
        saturation: float | tuple[float, float] = 0.0,
        hue: float | tuple[float, float] = 0.0,
        grayscale: float = 0.0,
        erase: float = 0.0,
        erase_scale: tuple[float, float] = (0.02, 0.33),
        erase_ratio: tuple[float, float] = (0.3, 3.3),
        erase_value: float | Sequence[float] = 0.0,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        mix: MixUp | CutMix | Sequence[MixUp | CutMix] = (),
        device: str | torch.device | None = None,
    ) -> None:
        self.vertical_flip = _share("vertical_flip", vertical_flip)
        self.rotate = _around("rotate", rotate)
        self.translate = (_share("translate", translate[0]), _share("translate", translate[1]))
        self.zoom = _range("zoom", zoom)
        if self.zoom[0] <= 0:
            raise ValueError(f"zoom={zoom!r}: factors have to be above 0")
        self.shear = _around("shear", shear)
        if max(map(abs, self.shear)) >= 90:
            raise ValueError(f"shear={shear!r} has to stay below 90 degrees")
        self.fill = _values("fill", fill)
        if interpolation not in ("bilinear", "nearest"):
            raise ValueError(f'interpolation={interpolation!r} has to be "bilinear" or "nearest"')
        self.interpolation = interpolation
        self.factors = [
            _factors(name, value)
            for name, value in zip(_COLOUR_CHANGES, (brightness, contrast, saturation), strict=False)
        ]
        self.hue = _around("hue", hue)
        if max(map(abs, self.hue)) > 0.5:
            raise ValueError(f"hue={hue!r} has to be within -0.5 and 0.5")
        self.grayscale = _share("grayscale", grayscale)
        self.erase = _share("erase", erase)
        self.erase_scale = _range("erase_scale", erase_scale)
        self.erase_ratio = _range("erase_ratio", erase_ratio)
        if not (self.erase_scale[0] >= 0 and self.erase_scale[1] <= 1 and self.erase_ratio[0] > 0):
            raise ValueError(
                "erase_scale= has to be shares of the image between 0 and 1, and erase_ratio= has to be "
                "above 0"
            )
        self.erase_value = _values("erase_value", erase_value)
        self.normalize = normalize
        self.mix = (mix,) if isinstance(mix, (MixUp, CutMix)) else tuple(mix)
        self.device = device

    @property
    def moves(self) -> bool:
        """`True` if points of an image may change their position."""
        still = (self.rotate, self.shear) == ((0.0, 0.0), (0.0, 0.0)) and self.zoom == (1.0, 1.0)
        return self.vertical_flip > 0 or not still or self.translate != (0.0, 0.0)

    def draw(self, seed: int, epoch: int, sample: int, size: tuple[int, int]) -> Drawn:
        """Draw the parameters of a sample in an epoch, for an image of this height and width."""
        random = Random(f"augment/{seed}/{epoch}/{sample}")
        height, width = size
        # All are drawn, even if unused, so that one setting does not change what another one draws.
        mirrored = random.random() < self.vertical_flip
        angle = random.uniform(*self.rotate)
        across, down = (random.uniform(-1, 1) * share for share in self.translate)
        zoom = random.uniform(*self.zoom)
        shear = random.uniform(*self.shear)
        factors = [random.uniform(*ends) for ends in (*self.factors, self.hue)]
        order = list(range(len(_COLOUR_CHANGES)))
        random.shuffle(order)
        grey = random.random() < self.grayscale
        erases = random.random() < self.erase
        erased = self._part(random, height, width) if erases else None
        return Drawn(
            mirrored=mirrored,
            angle=angle,
            translate=(float(round(across * width)), float(round(down * height))),
            zoom=zoom,
            shear=(shear, 0.0),
            factors=(factors[0], factors[1], factors[2], factors[3]),
            order=tuple(order),
            grey=grey,
            erased=erased,
        )

    def _part(self, random: Random, height: int, width: int) -> tuple[int, int, int, int] | None:
        narrow, wide = (math.log(end) for end in self.erase_ratio)
        for _ in range(_MAX_ATTEMPTS):
            area = height * width * random.uniform(*self.erase_scale)
            shape = math.exp(random.uniform(narrow, wide))
            tall, broad = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if tall < height and broad < width:
                return random.randint(0, height - tall), random.randint(0, width - broad), tall, broad
        return None

    def __call__(self, images: torch.Tensor, drawn: Sequence[Drawn]) -> torch.Tensor:
        """Augment a batch `[batch, channels, height, width]` with one set of parameters per image."""
        if self.device is not None:
            images = images.to(self.device, non_blocking=True)
        images = pixels.floats(images)
        images = pixels.mirrored(images, [one.mirrored for one in drawn])
        turned = [number for number, one in enumerate(drawn) if one.turns]
        if turned:
            size = (images.shape[-2], images.shape[-1])
            matrices = [_matrix(drawn[number], (0.0, 0.0), inverted=True) for number in turned]
            moved = pixels.turned(images[turned], matrices, size, self.fill, self.interpolation)
            images = pixels.replace_images(images, turned, moved)
        images = self._coloured(images, drawn)
        images = pixels.erased(images, [one.erased for one in drawn], self.erase_value)
        if self.normalize is None:
            return images
        mean, deviation = (
            torch.tensor(part, dtype=images.dtype, device=images.device) for part in self.normalize
        )
        return (images - mean[:, None, None]) / deviation[:, None, None]

    def _coloured(self, images: torch.Tensor, drawn: Sequence[Drawn]) -> torch.Tensor:
        changes = (pixels.brightness, pixels.contrast, pixels.saturation, pixels.hue)
        still = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
        active = [
            number
            for number, ends in enumerate((*self.factors, self.hue))
            if ends != still[number] and (images.shape[1] == 3 or number < 2)
        ]
        if active and images.shape[1] not in (1, 3):
            raise ValueError(f"colour changes need images with one or three channels, got {images.shape[1]}")
        for place in range(len(changes) if active else 0):
            for number in active:
                which = [at for at, one in enumerate(drawn) if one.order[place] == number]
                if which:
                    factors = [drawn[at].factors[number] for at in which]
                    images = pixels.replace_images(images, which, changes[number](images[which], factors))
        which = [at for at, one in enumerate(drawn) if one.grey and images.shape[1] == 3]
        return pixels.replace_images(images, which, pixels.grey(images[which])) if which else images

    def follow(self, target: Any, drawn: Drawn, size: tuple[int, int]) -> Any:
        """Move a target of an image of this height and width: see `follow=True` of the loader."""
        return moved_by_matrix(target, drawn.matrix(size), size) if drawn.moves else target

    def mixed(
        self, images: torch.Tensor, labels: Any, seed: int, epoch: int, first: int
    ) -> tuple[torch.Tensor, Any]:
        """Mix a batch with itself, with parameters drawn for its first sample."""
        if not self.mix:
            return images, labels
        random = Random(f"mix/{seed}/{epoch}/{first}")
        chosen = self.mix[random.randrange(len(self.mix))]
        return chosen(images, labels, random)


def _matrix(one: Drawn, center: tuple[float, float], inverted: bool = False) -> list[float]:
    """Return the matrix of rotation, zoom, shear and translation about a centre, as in torchvision:
    `translate · center · turn · zoom · shear · -center`.
    """
    turn, across, down = (math.radians(angle) for angle in (one.angle, *one.shear))
    a = math.cos(turn - down) / math.cos(down)
    b = -(a * math.tan(across) + math.sin(turn))
    c = math.sin(turn - down) / math.cos(down)
    d = math.cos(turn) - c * math.tan(across)
    x, y = center
    to_x, to_y = x + one.translate[0], y + one.translate[1]
    if inverted:
        # The determinant of rotation and shear is one.
        a, b, c, d = d / one.zoom, -b / one.zoom, -c / one.zoom, a / one.zoom
        return [a, b, x - a * to_x - b * to_y, c, d, y - c * to_x - d * to_y]
    a, b, c, d = (part * one.zoom for part in (a, b, c, d))
    return [a, b, to_x - a * x - b * y, c, d, to_y - c * x - d * y]


def _share(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} has to be between 0 and 1")
    return float(value)


def _range(name: str, ends: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(end) for end in ends)
    if not low <= high < math.inf:
        raise ValueError(f"{name}={ends!r} has to be a range (low, high)")
    return low, high


def _around(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """Return a range, or one symmetric around zero."""
    if isinstance(value, (tuple, list)):
        return _range(name, (value[0], value[1]))
    return _range(name, (-value, value))


def _factors(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """Return a range of factors, or one symmetric around one."""
    ends = value if isinstance(value, (tuple, list)) else (max(0.0, 1 - value), 1 + value)
    low, high = _range(name, (ends[0], ends[1]))
    if low < 0:
        raise ValueError(f"{name}={value!r}: factors must not be negative")
    return low, high


def _values(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    """Return one value for all channels, or one each."""
    found = tuple(float(part) for part in value) if isinstance(value, Sequence) else (float(value),)
    if not found:
        raise ValueError(f"{name}={value!r} is empty")
    return found
