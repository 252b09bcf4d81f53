"""Tiles of large images, as a source for `ImageLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memfit._core import Samples
from memfit.data._decode import Size
from memfit.data._settings import wide_and_high
from memfit.data._sources import Source, source_of


class Tile(NamedTuple):
    """The position of a tile: the number and name of its image, and its left, top, width and height."""

    image: int
    name: str
    part: tuple[int, int, int, int]


class Tiles:
    """The tiles of all images of a source, row by row, each decoded separately.

    `size` is a number or (height, width), and neighbours overlap by `overlap` pixels. The last tile of a row
    or column ends with the image, and overlaps more. Load them with `ImageLoader(tiles, size=tiles.size)`;
    without `shuffle`, the loader's n-th image is `tiles[n]`.
    """

    def __init__(
        self,
        source: Any,
        labels: Any = None,
        *,
        size: Size,
        overlap: Size = 0,
        page: int = 0,
        upright: bool = True,
        classes: Sequence[str] | None = None,
    ) -> None:
        self._given = (
            source,
            labels,
            {"size": size, "overlap": overlap, "page": page, "upright": upright, "classes": classes},
        )
        images = source_of(source, labels, classes)
        self._images = images.samples
        width, height = wide_and_high(size)
        self.size = (height, width)
        self._tiles = self._images.tiles(
            (width, height), wide_and_high(overlap, "overlap", least=0), page, upright
        )
        self._samples = self._tiles.samples()
        # Tiles have the labels of their images.
        self.source = Source(self._samples, images.classes, images.table)

    def __reduce__(self) -> tuple[Any, ...]:
        source, labels, options = self._given
        return _made, (source, labels, options)

    @property
    def samples(self) -> Samples:
        """The tiles as samples."""
        return self._samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> Tile:
        image, part = self._tiles.place(number)
        return Tile(image, self._images.name(image), part)


def _made(source: Any, labels: Any, options: dict[str, Any]) -> Tiles:
    """Recreate the tiles in another process."""
    return Tiles(source, labels, **options)
