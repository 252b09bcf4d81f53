"""Tables of paths and labels: a CSV file, or a data frame."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

from memfit._core import Samples

_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
_LABELS = ("label", "labels", "target", "class", "class_name", "category", "y")


def of_file(path: str) -> Samples:
    """The rows of a CSV or TSV file. Paths are told from its folder."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file, delimiter="\t" if path.endswith(".tsv") else ",") if row]
    if not rows:
        raise ValueError(f"{path}: there are no rows in it")
    columns = [name.strip().lower() for name in rows[0]]
    headed = _column(columns, _PATHS) is not None
    if headed:
        rows = rows[1:]
    paths, labels = _column(columns, _PATHS) or 0, _column(columns, _LABELS)
    if labels is None and len(columns) == 2:
        labels = 1 - paths
    wide = max(paths, labels or 0)
    for number, row in enumerate(rows, 1 + headed):
        if len(row) <= wide:
            raise ValueError(f"{path}: row {number} has {len(row)} of {len(columns)} values")
    folder = os.path.dirname(os.path.abspath(path))
    found = [os.path.join(folder, row[paths].strip()) for row in rows]
    return _samples(found, None if labels is None else [row[labels].strip() for row in rows])


def is_frame(source: Any) -> bool:
    """Whether it is a data frame, as pandas and polars have them."""
    return hasattr(source, "columns") and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def of_frame(frame: Any) -> Samples:
    """The rows of a data frame."""
    names = [str(name) for name in frame.columns]
    lower = [name.lower() for name in names]
    paths, labels = _column(lower, _PATHS), _column(lower, _LABELS)
    if paths is None:
        raise ValueError(f"no column of the table is called {', '.join(_PATHS)}; it has {', '.join(names)}")
    found = [os.fspath(path) for path in frame[names[paths]]]
    return _samples(found, None if labels is None else list(frame[names[labels]]))


def _column(columns: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((columns.index(name) for name in wanted if name in columns), None)


def _samples(paths: list[str], labels: list[Any] | None) -> Samples:
    if not paths:
        raise ValueError("there are no samples in the table")
    if labels is None:
        return Samples.files(paths, [0] * len(paths))
    try:
        return Samples.files(paths, [int(label) for label in labels])
    except ValueError:
        # Names of classes, numbered in their order, as those of folders are.
        classes = sorted({str(label) for label in labels})
        numbers = {name: number for number, name in enumerate(classes)}
        return Samples.files(paths, [numbers[str(label)] for label in labels], classes)
