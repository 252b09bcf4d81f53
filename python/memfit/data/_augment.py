"""`Augment`: random changes of each picture, drawn for each sample from where it stands and not from when it
comes.

What is drawn is a function of (seed, epoch, sample), so that neither threads, worker processes, the size of
batches nor a resumed run change it. What is done with it is done to whole batches.
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

# As torchvision's `ColorJitter` names and counts them.
_COLOURS = ("brightness", "contrast", "saturation", "hue")
# How often a part to erase is drawn anew before none is erased.
_TRIES = 10


@dataclass(frozen=True)
class Drawn:
    """What is done to one picture."""

    mirrored: bool
    """Top to bottom."""
    angle: float
    """Degrees, clockwise."""
    translate: tuple[float, float]
    """Pixels to the right and down."""
    zoom: float
    """The factor by which it becomes larger."""
    shear: tuple[float, float]
    """Degrees across and down."""
    factors: tuple[float, float, float, float]
    """Of brightness, contrast and saturation, and by how much hue is turned."""
    order: tuple[int, ...]
    """In which order these four are changed."""
    grey: bool
    """Whether colours are taken away."""
    erased: tuple[int, int, int, int] | None
    """Top, left, height and width of what is painted over."""

    @property
    def moves(self) -> bool:
        """Whether points of the picture come to lie elsewhere."""
        return self.mirrored or self.turns

    @property
    def turns(self) -> bool:
        """Whether pixels have to be made anew."""
        return self.angle != 0 or self.zoom != 1 or any(self.translate) or any(self.shear)

    def matrix(self, size: tuple[int, int]) -> list[float]:
        """How points of a picture of this height and width move: `x' = m0 x + m1 y + m2`, and y' by the
        other three.
        """
        height, width = size
        a, b, c, d, e, f = _matrix(self, (width / 2, height / 2))
        # It is mirrored first.
        return [a, -b, b * height + c, d, -e, e * height + f] if self.mirrored else [a, b, c, d, e, f]


class Augment:
    """Random changes of each picture, its own: `ImageLoader(…, augment=Augment(rotate=15, brightness=0.4))`.

    In this order: mirrored top to bottom (`vertical_flip`, how often), turned by up to `rotate` degrees,
    moved by up to `translate` (shares of width and height), zoomed, sheared by up to `shear` degrees;
    brightness, contrast, saturation and hue changed in a random order; colours taken away (`grayscale`, how
    often); a part painted over (`erase`, how often) and at last normalised by `normalize` (means,
    deviations). Each means what it means to torchvision's v2 transforms, and ranges may be given as (low,
    high).

    Pictures come out as floats from 0 to 1, or normalised. With `device`, batches are copied there and
    changed there. With the loader's `follow=True`, targets are moved along. `mix` mixes each batch with
    itself: a `MixUp`, a `CutMix`, or several, of which one is drawn for each batch.
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
            raise ValueError(f"zoom={zoom!r}: a picture cannot be made that small")
        self.shear = _around("shear", shear)
        if max(map(abs, self.shear)) >= 90:
            raise ValueError(f"shear={shear!r} has to stay below 90 degrees")
        self.fill = _values("fill", fill)
        if interpolation not in ("bilinear", "nearest"):
            raise ValueError(f'interpolation={interpolation!r} is neither "bilinear" nor "nearest"')
        self.interpolation = interpolation
        self.factors = [
            _factors(name, value)
            for name, value in zip(_COLOURS, (brightness, contrast, saturation), strict=False)
        ]
        self.hue = _around("hue", hue)
        if max(map(abs, self.hue)) > 0.5:
            raise ValueError(f"hue={hue!r} has to stay within half a turn, from -0.5 to 0.5")
        self.grayscale = _share("grayscale", grayscale)
        self.erase = _share("erase", erase)
        self.erase_scale = _range("erase_scale", erase_scale)
        self.erase_ratio = _range("erase_ratio", erase_ratio)
        if not (self.erase_scale[0] >= 0 and self.erase_scale[1] <= 1 and self.erase_ratio[0] > 0):
            raise ValueError("erase_scale= are shares of the picture, and erase_ratio= is above 0")
        self.erase_value = _values("erase_value", erase_value)
        self.normalize = normalize
        self.mix = (mix,) if isinstance(mix, (MixUp, CutMix)) else tuple(mix)
        self.device = device

    @property
    def moves(self) -> bool:
        """Whether points of a picture may come to lie elsewhere."""
        still = (self.rotate, self.shear) == ((0.0, 0.0), (0.0, 0.0)) and self.zoom == (1.0, 1.0)
        return self.vertical_flip > 0 or not still or self.translate != (0.0, 0.0)

    def draw(self, seed: int, epoch: int, sample: int, size: tuple[int, int]) -> Drawn:
        """What is done to a sample in a pass, of a picture of this height and width."""
        random = Random(f"augment/{seed}/{epoch}/{sample}")
        height, width = size
        # All are drawn, whatever is asked for: then one setting does not change what another one draws.
        mirrored = random.random() < self.vertical_flip
        angle = random.uniform(*self.rotate)
        across, down = (random.uniform(-1, 1) * share for share in self.translate)
        zoom = random.uniform(*self.zoom)
        shear = random.uniform(*self.shear)
        factors = [random.uniform(*ends) for ends in (*self.factors, self.hue)]
        order = list(range(len(_COLOURS)))
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
        for _ in range(_TRIES):
            area = height * width * random.uniform(*self.erase_scale)
            shape = math.exp(random.uniform(narrow, wide))
            tall, broad = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if tall < height and broad < width:
                return random.randint(0, height - tall), random.randint(0, width - broad), tall, broad
        return None

    def __call__(self, images: torch.Tensor, drawn: Sequence[Drawn]) -> torch.Tensor:
        """A batch `[batch, channels, height, width]` with what was drawn for each done to it."""
        if self.device is not None:
            images = images.to(self.device, non_blocking=True)
        images = pixels.floats(images)
        images = pixels.mirrored(images, [one.mirrored for one in drawn])
        turned = [number for number, one in enumerate(drawn) if one.turns]
        if turned:
            size = (images.shape[-2], images.shape[-1])
            matrices = [_matrix(drawn[number], (0.0, 0.0), inverted=True) for number in turned]
            moved = pixels.turned(images[turned], matrices, size, self.fill, self.interpolation)
            images = pixels.put(images, turned, moved)
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
            raise ValueError(f"colours are one or three bands, and there are {images.shape[1]}")
        for place in range(len(changes) if active else 0):
            for number in active:
                which = [at for at, one in enumerate(drawn) if one.order[place] == number]
                if which:
                    factors = [drawn[at].factors[number] for at in which]
                    images = pixels.put(images, which, changes[number](images[which], factors))
        which = [at for at, one in enumerate(drawn) if one.grey and images.shape[1] == 3]
        return pixels.put(images, which, pixels.grey(images[which])) if which else images

    def follow(self, target: Any, drawn: Drawn, size: tuple[int, int]) -> Any:
        """What belongs to a picture of this height and width, as it is afterwards: see `follow=True` of the
        loader.
        """
        return moved_by_matrix(target, drawn.matrix(size), size) if drawn.moves else target

    def mixed(
        self, images: torch.Tensor, labels: Any, seed: int, epoch: int, first: int
    ) -> tuple[torch.Tensor, Any]:
        """A batch mixed with itself, as is drawn by its first sample."""
        if not self.mix:
            return images, labels
        random = Random(f"mix/{seed}/{epoch}/{first}")
        chosen = self.mix[random.randrange(len(self.mix))]
        return chosen(images, labels, random)


def _matrix(one: Drawn, center: tuple[float, float], inverted: bool = False) -> list[float]:
    """Turned, zoomed, sheared and moved about a center: `translate · center · turn · zoom · shear · -center`,
    as torchvision has it.
    """
    turn, across, down = (math.radians(angle) for angle in (one.angle, *one.shear))
    a = math.cos(turn - down) / math.cos(down)
    b = -(a * math.tan(across) + math.sin(turn))
    c = math.sin(turn - down) / math.cos(down)
    d = math.cos(turn) - c * math.tan(across)
    x, y = center
    to_x, to_y = x + one.translate[0], y + one.translate[1]
    if inverted:
        # The determinant of turning and shearing is one.
        a, b, c, d = d / one.zoom, -b / one.zoom, -c / one.zoom, a / one.zoom
        return [a, b, x - a * to_x - b * to_y, c, d, y - c * to_x - d * to_y]
    a, b, c, d = (part * one.zoom for part in (a, b, c, d))
    return [a, b, to_x - a * x - b * y, c, d, to_y - c * x - d * y]


def _share(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} is no share between 0 and 1")
    return float(value)


def _range(name: str, ends: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(end) for end in ends)
    if not low <= high < math.inf:
        raise ValueError(f"{name}={ends!r} is no range")
    return low, high


def _around(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """A range, or as much to either side of nothing."""
    if isinstance(value, (tuple, list)):
        return _range(name, (value[0], value[1]))
    return _range(name, (-value, value))


def _factors(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """A range of factors, or as much to either side of one."""
    ends = value if isinstance(value, (tuple, list)) else (max(0.0, 1 - value), 1 + value)
    low, high = _range(name, (ends[0], ends[1]))
    if low < 0:
        raise ValueError(f"{name}={value!r} is no range of factors")
    return low, high


def _values(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    """One value for all bands, or one each."""
    found = tuple(float(part) for part in value) if isinstance(value, Sequence) else (float(value),)
    if not found:
        raise ValueError(f"{name}={value!r} has no value")
    return found
