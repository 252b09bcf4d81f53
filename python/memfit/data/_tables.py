"""Reads tables of paths and labels: a CSV file, or a data frame."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
_LABELS = ("label", "labels", "target", "class", "class_name", "category", "y")


class Table(NamedTuple):
    """Paths, and labels if there are any."""

    paths: list[str]
    labels: Any
    # Labels are text, and may be numbers or names.
    is_text: bool
    # The place of a row, for messages.
    row: Callable[[int], str]


def read_file(path: str) -> Table:
    """Read the rows of a CSV or TSV file. Paths are relative to its folder."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file, delimiter="\t" if path.endswith(".tsv") else ",") if row]
    if not rows:
        raise ValueError(f"{path}: the file has no rows")
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
    if not found:
        raise ValueError(f"{path}: the file has no rows")
    texts = None if labels is None else [row[labels].strip() for row in rows]
    return Table(found, texts, True, lambda number: f"{path}: row {number + 1 + headed}")


def is_frame(source: Any) -> bool:
    """Return `True` for a data frame of pandas or polars."""
    return hasattr(source, "columns") and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def read_frame(frame: Any) -> Table:
    """Read the rows of a data frame."""
    names = [str(name) for name in frame.columns]
    lower = [name.lower() for name in names]
    paths, labels = _column(lower, _PATHS), _column(lower, _LABELS)
    if paths is None:
        raise ValueError(
            f"the table has no column named {', '.join(_PATHS)}; its columns are {', '.join(names)}"
        )
    found = [os.fspath(path) for path in frame[names[paths]]]
    if not found:
        raise ValueError("the table is empty")
    column = None if labels is None else frame[names[labels]]
    return Table(found, column, False, lambda number: f"row {number} of the table")


def _column(columns: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((columns.index(name) for name in wanted if name in columns), None)
