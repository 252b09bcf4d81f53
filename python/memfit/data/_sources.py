"""From what a user has to samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from glob import glob
from typing import Any

from memfit._core import Samples
from memfit.data import _tables

# Where dictionaries keep an image and what belongs to it, as Hugging Face's and WebDataset's do.
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "tif", "pixel_values")
_TARGETS = ("label", "labels", "target", "cls", "fine_label")


def samples_of(source: Any, labels: Any) -> Samples:
    """The samples that a source stands for."""
    if isinstance(source, Samples):
        return source
    tiles = getattr(source, "samples", None)
    if isinstance(tiles, Samples):
        return tiles
    if isinstance(source, (str, os.PathLike)):
        return _of_path(os.fspath(source))
    if isinstance(source, (list, tuple)) and source and all(_is_path(item) for item in source):
        paths = [os.fspath(item) for item in source]
        if all(path.endswith(".tar") for path in paths):
            return Samples.shards(paths)
        numbers = [0] * len(paths) if labels is None else [int(label) for label in labels]
        if len(numbers) != len(paths):
            raise ValueError(f"there are {len(paths)} paths and {len(numbers)} labels")
        return Samples.files(paths, numbers)
    if isinstance(source, (list, tuple)) and source and all(_is_pair(item) for item in source):
        return Samples.files([os.fspath(path) for path, _ in source], [int(label) for _, label in source])
    if _tables.is_frame(source):
        return _tables.of_frame(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        if len(source) == 0:
            raise ValueError("there are no samples in the source")
        return Samples.fetched(_fetcher(source, labels), len(source))
    raise TypeError(
        f"a {type(source).__name__} is no source: give a folder, paths, tar shards, or a data set with `len` whose items are bytes or a path"
    )


def _of_path(path: str) -> Samples:
    if os.path.isdir(path):
        return Samples.folder(path)
    found = sorted(glob(path)) or [path]
    if all(name.endswith(".tar") for name in found):
        return Samples.shards(found)
    if all(name.endswith((".parquet", ".arrow")) for name in found):
        return samples_of(_table(found), None)
    if len(found) == 1 and found[0].endswith((".csv", ".tsv")):
        return _tables.of_file(found[0])
    return Samples.files(found, [0] * len(found))


def _table(paths: Sequence[str]) -> Any:
    """Rows of Parquet or Arrow files, their images left as they are stored."""
    try:
        from datasets import Image, load_dataset
    except ImportError:
        raise ImportError(
            "Parquet and Arrow are read with Hugging Face's `datasets`: pip install datasets"
        ) from None
    kind = "parquet" if paths[0].endswith(".parquet") else "arrow"
    rows = load_dataset(kind, data_files=list(paths), split="train")
    for name, feature in rows.features.items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike))


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, (tuple, list)) and len(item) == 2 and _is_path(item[0]) and isinstance(item[1], int)
    )


def _fetcher(source: Any, labels: Any) -> Callable[[int], tuple[Any, Any]]:
    """What gives a data set's image and target by number."""
    features = getattr(source, "features", None)
    if isinstance(features, dict) and hasattr(source, "cast_column"):
        # A data set of Hugging Face's would decode its images itself.
        for name, feature in features.items():
            if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
                source = source.cast_column(name, type(feature)(decode=False))

    def fetch(index: int) -> tuple[Any, Any]:
        item = source[index]
        target = 0 if labels is None else labels[index]
        if isinstance(item, dict) and not {"bytes", "path"} & item.keys():
            image = next((item[name] for name in _IMAGES if name in item), None)
            if labels is None:
                target = next((item[name] for name in _TARGETS if name in item), 0)
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            image, target = item
        else:
            image = item
        if isinstance(image, dict):
            image = image.get("bytes") or image.get("path")
        if isinstance(image, (bytes, bytearray, memoryview, str, os.PathLike)):
            return image, target
        raise TypeError(
            f"sample {index} is a {type(image).__name__}, not bytes or a path: let the data set return the file as it is, undecoded"
        )

    return fetch
