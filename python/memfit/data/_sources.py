"""Turns the sources that a user passes into samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from glob import glob
from typing import Any, NamedTuple

import torch

from memfit._core import Samples
from memfit.data import _labels, _pillow, _remote, _tables

# Keys of an image and its target in dictionaries of Hugging Face and WebDataset.
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "tif", "pixel_values")
_TARGETS = ("label", "labels", "target", "cls", "fine_label")


class Source(NamedTuple):
    """Samples, and the classes or labels of their targets."""

    samples: Samples
    classes: list[str]
    table: torch.Tensor | list[Any] | None = None


# Archives of samples, plain and compressed.
_SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")


def source_of(source: Any, labels: Any = None, classes: Sequence[str] | None = None) -> Source:
    """Read a source, with labels for its samples if it has none."""
    tiles = getattr(source, "source", None)
    if isinstance(tiles, Source):
        _refuse_labels(labels, classes, "tiles have the labels of their images")
        return tiles
    if isinstance(source, (str, os.PathLike)):
        return _of_path(os.fspath(source), labels, classes)
    if isinstance(source, (list, tuple)) and source and all(_is_path(item) for item in source):
        paths = [os.fspath(item) for item in source]
        if all(path.endswith(_SHARDS) for path in paths):
            _refuse_labels(labels, classes, "shards contain their labels, in `.cls`")
            return Source(Samples.shards(paths), [])
        return _of_files(paths, labels, classes)
    if isinstance(source, (list, tuple)) and source and all(_is_pair(item) for item in source):
        _refuse_labels(labels, None, "the pairs contain labels")
        paths = [os.fspath(path) for path, _ in source]
        return _of_files(paths, [label for _, label in source], classes)
    if _tables.is_frame(source):
        return _of_table(_tables.read_frame(source), labels, classes)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        if len(source) == 0:
            raise ValueError("the source is empty")
        return _of_data_set(source, labels, classes)
    raise TypeError(
        f"unsupported source of type {type(source).__name__}: pass a folder, paths, tar shards, or a data "
        "set with `len` whose items are bytes or a path"
    )


def _of_path(path: str, labels: Any, classes: Sequence[str] | None) -> Source:
    if _remote.is_address(path):
        return _of_address(path, labels, classes)
    if os.path.isdir(path):
        _refuse_labels(labels, None, "the classes of a folder are the names of its subfolders")
        samples = Samples.folder(path)
        if classes is None:
            return Source(samples, samples.classes)
        return Source(samples, list(classes), _labels.renumbered(samples.classes, classes))
    found = sorted(glob(path)) or [path]
    if all(name.endswith(_SHARDS) for name in found):
        _refuse_labels(labels, classes, "shards contain their labels, in `.cls`")
        return Source(Samples.shards(found), [])
    if all(name.endswith((".parquet", ".arrow")) for name in found):
        return source_of(_table(found), labels, classes)
    if len(found) == 1 and found[0].endswith((".csv", ".tsv")):
        return _of_table(_tables.read_file(found[0]), labels, classes)
    return _of_files(found, labels, classes)


def _of_address(address: str, labels: Any, classes: Sequence[str] | None) -> Source:
    found = _remote.listed(address)
    if any(name.endswith((*_SHARDS, ".csv", ".tsv", ".parquet", ".arrow")) for name in found):
        raise ValueError(
            f"{address}: shards and tables can only be read from local files: copy them here, or pass a list "
            "of their images"
        )
    names = _remote.folders(address, found) if labels is None and len(found) > 1 else None
    return _of_files(found, labels if names is None else names, classes)


def _refuse_labels(labels: Any, classes: Any, why: str) -> None:
    """Refuse labels for a source that has its own."""
    name = "labels=" if labels is not None else "classes=" if classes is not None else None
    if name is not None:
        raise ValueError(f"{name} is for paths and data sets without labels: {why}")


def _of_files(paths: list[str], labels: Any, classes: Sequence[str] | None) -> Source:
    if labels is None:
        _refuse_labels(None, classes, "there are no labels here")
        found = _labels.none(len(paths))
    else:
        found = _labels.read_labels(
            labels, len(paths), classes, lambda number: f"the label of {paths[number]}"
        )
    return _listed(paths, found)


def _of_table(table: _tables.Table, labels: Any, classes: Sequence[str] | None) -> Source:
    if table.labels is None or labels is not None:
        if table.labels is not None:
            _refuse_labels(labels, None, "the table has a column of labels")
        return _of_files(table.paths, labels, classes)
    if table.is_text:
        return _listed(table.paths, _labels.read_text_labels(table.labels, classes, table.row))
    return _listed(table.paths, _labels.read_labels(table.labels, len(table.paths), classes, table.row))


def _listed(paths: list[str], labels: _labels.Labels) -> Source:
    if any(_remote.is_address(path) for path in paths):
        if not all(_remote.is_address(path) for path in paths):
            raise ValueError("remote addresses and local paths cannot be combined: pass one or the other")
        fetch = _remote.Fetcher(paths, labels.numbers)
        return Source(Samples.fetched(fetch, len(paths)), labels.classes, labels.table)
    if any(map(_pillow.kind_of, paths)):
        opener = _pillow.Opener(paths, labels.numbers)
        return Source(Samples.fetched(opener, len(paths)), labels.classes, labels.table)
    return Source(Samples.files(paths, labels.numbers, labels.classes), labels.classes, labels.table)


def _of_data_set(source: Any, labels: Any, classes: Sequence[str] | None) -> Source:
    count = len(source)
    if labels is None:
        return Source(Samples.fetched(_fetcher(source, None), count), list(classes or []))
    found = _labels.read_labels(labels, count, classes, lambda number: f"the label of sample {number}")
    samples = Samples.fetched(_fetcher(source, found.numbers), count)
    return Source(samples, found.classes, found.table)


def _table(paths: Sequence[str]) -> Any:
    """Return the rows of Parquet or Arrow files, with undecoded images."""
    try:
        from datasets import Image, load_dataset
    except ImportError:
        raise ImportError("Parquet and Arrow need Hugging Face's `datasets`: pip install datasets") from None
    kind = "parquet" if paths[0].endswith(".parquet") else "arrow"
    rows = load_dataset(kind, data_files=list(paths), split="train")
    for name, feature in rows.features.items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike))


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and _is_path(item[0])


def _fetcher(source: Any, labels: Sequence[int] | None) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that reads a data set's image and target by number."""
    features = getattr(source, "features", None)
    if isinstance(features, dict) and hasattr(source, "cast_column"):
        # A Hugging Face data set would decode its images itself.
        for name, feature in features.items():
            if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
                source = source.cast_column(name, type(feature)(decode=False))

    def fetch(index: int) -> tuple[Any, Any]:
        item = source[index]
        image, target = item, None
        if isinstance(item, dict) and not {"bytes", "path"} & item.keys():
            image = next((item[name] for name in _IMAGES if name in item), None)
            target = next((item[name] for name in _TARGETS if name in item), None)
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            image, target = item
            if labels is not None:
                raise ValueError(
                    f"sample {index} has its own target: leave labels= out, or return the image alone"
                )
        if isinstance(image, dict):
            image = image.get("bytes") or image.get("path")
        if not isinstance(image, (bytes, bytearray, memoryview, str, os.PathLike)):
            raise TypeError(
                f"sample {index} is a {type(image).__name__}, not bytes or a path: return the encoded file "
                "from the data set"
            )
        image = _pillow.readable(image)
        if labels is not None:
            return image, labels[index]
        if target is None:
            # Without any labels, each target is 0; a single missing label is an error.
            if index and _has_target(source[0]):
                raise ValueError(
                    f"sample {index} has no label, but sample 0 has: give it one, or leave it out"
                )
            return image, 0
        return image, target

    return fetch


def _has_target(item: Any) -> bool:
    if isinstance(item, dict):
        return any(item.get(name) is not None for name in _TARGETS)
    return isinstance(item, (tuple, list)) and len(item) == 2 and item[1] is not None
