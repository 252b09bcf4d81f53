"""Volumes, read in blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from memfit._core import Volume as Stored

Range = tuple[int, int] | None


class Volume:
    """A NIfTI file, or a series of DICOM files (a folder, or their paths). Creating it reads only the
    headers.

    `volume[10:20, :, 64:128]` reads slices, rows and columns as stored; `read` does the same, and with
    `scaled` returns 32-bit floats in physical units (Hounsfield units, for a CT).
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        series: str | None = None,
        frame: int = 0,
    ) -> None:
        paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
        self._stored = Stored([os.fspath(path) for path in paths], series, frame)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slices, rows, columns."""
        return self._stored.shape

    @property
    def dtype(self) -> torch.dtype:
        """The stored data type."""
        kind: torch.dtype = getattr(torch, self._stored.dtype)
        return kind

    @property
    def spacing(self) -> tuple[float, float, float]:
        """The distance between slices, rows and columns, in the file's unit; zero if unknown."""
        return self._stored.spacing

    @property
    def scale(self) -> tuple[float, float]:
        """The slope and intercept of stored values."""
        return self._stored.scale

    def read(
        self, depth: Range = None, rows: Range = None, columns: Range = None, *, scaled: bool = False
    ) -> torch.Tensor:
        """Read a block as [depth, rows, columns]; each range is (start, stop), or all of it if left out."""
        ranges = [
            (0, length) if given is None else given
            for given, length in zip((depth, rows, columns), self.shape, strict=True)
        ]
        sizes = [max(0, end - start) for start, end in ranges]
        out = torch.empty(sizes, dtype=torch.float32 if scaled else self.dtype)
        if out.numel():
            self._stored.read_into(ranges[0], ranges[1], ranges[2], scaled, out.data_ptr(), out.nbytes)
        return out

    def __getitem__(self, key: Any) -> torch.Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > 3:
            raise IndexError(f"a volume has three dimensions, got {len(keys)} indices")
        keys += (slice(None),) * (3 - len(keys))
        ranges: list[tuple[int, int]] = []
        kept: list[slice | int] = []
        for given, length in zip(keys, self.shape, strict=True):
            if isinstance(given, slice):
                start, end, step = given.indices(length)
                if step != 1:
                    raise IndexError(
                        "volumes support no slice steps: read the whole range and index the result"
                    )
                ranges.append((start, max(start, end)))
                kept.append(slice(None))
            else:
                number = given + length if given < 0 else given
                if not 0 <= number < length:
                    raise IndexError(f"index {given} is out of range for length {length}")
                ranges.append((number, number + 1))
                kept.append(0)
        return self.read(*ranges)[tuple(kept)]
