"""Decodes one image into a tensor, for use inside any `Dataset`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from memfit._core import Image, Recipe
from memfit.data._pillow import readable
from memfit.data._settings import MAX_SIDE, integer, wide_and_high

Size = int | tuple[int, int]
Crop = Literal["center", "random"] | tuple[int, int, int, int] | None


class Decoded(NamedTuple):
    """An image, and the mapping from points of the source image: `x' = a x + b`, `y' = c y + d` as (a, b, c,
    d).
    """

    image: torch.Tensor
    mapping: tuple[float, float, float, float]
    source_size: tuple[int, int]


def recipe(
    *,
    size: Size | None,
    crop: Crop,
    resize: int | None = None,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.0,
    mode: str = "rgb",
    dtype: str | torch.dtype | None = None,
    filter: str = "bilinear",  # noqa: A002
    margin: float | None = 2.0,
    page: int = 0,
    upright: bool = True,
) -> Recipe:
    """Check the settings for decoding an image, and return them as a recipe."""
    part = None
    if isinstance(crop, (tuple, list)):
        part, kind = tuple(crop), "part"
    else:
        kind = crop or "none"
    # An int with crop=None is the shorter side, as in torchvision's Resize.
    if isinstance(size, int) and crop is None:
        if resize is not None:
            raise ValueError("size= as a single number is the shorter side already; leave resize= out")
        size, resize = None, size
    return Recipe(
        crop=kind,
        part=part,
        size=None if size is None else wide_and_high(size),
        resize=None if resize is None else integer("resize", resize, 1, MAX_SIDE),
        scale=scale,
        ratio=ratio,
        flip=flip,
        mode=mode,
        dtype=None if dtype is None else name_of(dtype),
        filter=filter,
        margin=margin,
        page=integer("page", page, 0, MAX_SIDE),
        upright=upright,
    )


def decode(
    data: bytes | bytearray | memoryview | str | os.PathLike[str],
    size: Size | None = None,
    crop: Crop = None,
    *,
    seed: Sequence[int] = (),
    channels_last: bool = False,
    with_mapping: bool = False,
    **options: Any,
) -> Any:
    """Decode an image, given as bytes or as a path, into a tensor of channels, height and width.

    `crop` is None, `(left, top, width, height)`, `"center"` or `"random"`; `size` is `(height, width)`, or
    one number: the shorter side with `crop=None`, else both sides. A JPEG is decoded at a reduced scale, and
    only in the required region, as long as that leaves at least `margin` (2) times the requested pixels;
    `margin=None` decodes in full. The other options are those of `ImageLoader`: `resize`, `scale`, `ratio`,
    `flip`, `mode`, `dtype`, `filter`, `page`, `upright`. `"random"` draws from `seed`, or from torch's
    generator if that is not given.

    With `with_mapping`, returns a `Decoded`, whose `mapping` maps boxes and points to the decoded image.
    """
    plan = recipe(size=size, crop=crop, **options)
    place = [int(part) for part in seed]
    if not place and (crop == "random" or options.get("flip")):
        place = [int(torch.randint(1 << 62, ()))]
    image = Image(readable(data), plan, place)
    width, height = image.size
    kind = getattr(torch, image.dtype)
    if channels_last:
        out = torch.empty((height, width, image.bands), dtype=kind)
        image.decode_into(out.data_ptr(), out.nbytes, False)
        out = out.permute(2, 0, 1)
    else:
        out = torch.empty((image.bands, height, width), dtype=kind)
        image.decode_into(out.data_ptr(), out.nbytes, True)
    if with_mapping:
        return Decoded(out, image.mapping, image.source_size)
    return out


def name_of(dtype: str | torch.dtype) -> str:
    """Return a type's name without `torch.`."""
    return str(dtype).removeprefix("torch.")
