"""Pictures for tests: made up, but with edges, texture and gradients as photographs have them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture like a photograph: smooth regions, edges, a little noise."""
    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.float32)
    planes = []
    for band in range(3):
        plane = 90 + 60 * numpy.sin(x / (17 + 9 * band) + seed) + 50 * numpy.cos(y / (23 + 5 * band))
        plane += 40 * ((x // 31 + y // (19 + band)) % 2)
        planes.append(plane + random.normal(0, 4, plane.shape))
    return Image.fromarray(numpy.clip(numpy.stack(planes, -1), 0, 255).astype(numpy.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """An image as a file's bytes."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def folder(root: Path, count: int = 24, classes: int = 3) -> Path:
    """A class folder of small JPEGs of different sizes."""
    for number in range(count):
        place = root / f"class{number % classes}"
        place.mkdir(parents=True, exist_ok=True)
        image = picture(60 + number, 90 - number, number)
        (place / f"{number:04}.jpg").write_bytes(encoded(image, "JPEG", quality=90))
    return root


def tensor(image: Image.Image) -> torch.Tensor:
    array = numpy.array(image)
    array = array[..., None] if array.ndim == 2 else array
    return torch.from_numpy(array).permute(2, 0, 1)


def of_pillow(data: bytes, mode: str = "RGB", page: int = 0) -> torch.Tensor:
    image = Image.open(io.BytesIO(data))
    image.seek(page)
    return tensor(image.convert(mode))


def apart(one: torch.Tensor, other: torch.Tensor) -> int:
    assert one.shape == other.shape
    return int((one.int() - other.int()).abs().max())
