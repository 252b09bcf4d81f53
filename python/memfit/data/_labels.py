"""Reads labels without silently rounding, renumbering or inventing any.

Integers, booleans, floats, rows of numbers (multi-hot, several targets) and anything else keep their types.
Class names are numbered, and `ImageLoader.classes` has the order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

_INT64 = range(-(1 << 63), 1 << 63)
# An integer; `007` and `1_000` may as well be names.
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PATH = re.compile(r"[/\\]|\.(jpe?g|png|tiff?|bmp|webp|npy|npz|json|xml|txt|pt)$", re.IGNORECASE)


class Labels(NamedTuple):
    """The labels of a source: a number for each sample, and a table if that number is not the label
    itself.
    """

    numbers: list[int]
    classes: list[str]
    # The labels by number: a tensor if all have one type and shape, else a list.
    table: torch.Tensor | list[Any] | None = None


def none(count: int) -> Labels:
    """Return labels of 0 for a source without labels."""
    return Labels([0] * count, [])


def renumbered(found: Sequence[str], classes: Sequence[str]) -> torch.Tensor:
    """Return the numbers of the found classes in the user's order of classes."""
    numbers = _numbers(classes)
    return torch.tensor([_number(name, numbers, "a folder") for name in found], dtype=torch.int64)


def read_labels(given: Any, count: int, classes: Sequence[str] | None, where: Callable[[int], str]) -> Labels:
    """Read labels for `count` samples; `where` names the place of a label for messages."""
    if isinstance(given, dict):
        raise TypeError(
            "labels= is a dictionary: pass a list in the order of the paths, as [labels[path] for path in "
            "paths]"
        )
    array = _array(given)
    length = len(given) if array is None else len(array)
    if length != count:
        raise ValueError(f"there are {count} paths and {length} labels")
    if array is not None:
        return _from_tensor(array, classes, where)
    labels = [label.item() if _is_scalar(label) else label for label in given]
    for number, label in enumerate(labels):
        _check_present(label, where(number))
    if all(isinstance(label, str) for label in labels):
        return _from_names(labels, classes, where)
    if classes is not None:
        number = next(n for n, label in enumerate(labels) if not isinstance(label, str))
        raise ValueError(f"classes= needs labels that are names, but {where(number)} is {labels[number]!r}")
    kinds = {type(label) for label in labels}
    if kinds == {int}:
        return Labels([_check_range(label, where(number)) for number, label in enumerate(labels)], [])
    if kinds == {bool} or kinds == {float}:
        return _rows(torch.tensor(labels, dtype=torch.bool if kinds == {bool} else torch.float64))
    for one, other, advice in (
        (int, float, "pass all of them as floats"),
        (int, bool, "pass all of them as one type"),
        (float, bool, "pass all of them as floats"),
    ):
        if kinds == {one, other}:
            first = next(number for number, label in enumerate(labels) if type(label) is not type(labels[0]))
            raise ValueError(
                f"{where(first)} is {labels[first]!r}, but {where(0)} is {labels[0]!r}, of another type: "
                f"{advice}"
            )
    if str in kinds:
        number = next(
            n for n, label in enumerate(labels) if isinstance(label, str) != isinstance(labels[0], str)
        )
        raise ValueError(
            f"{where(number)} is {labels[number]!r}, but {where(0)} is {labels[0]!r}: pass names or numbers, "
            "not both"
        )
    return _from_objects(labels)


def read_text_labels(texts: list[str], classes: Sequence[str] | None, where: Callable[[int], str]) -> Labels:
    """Read the cells of a file's column, which are numbers only if all of them are."""
    for number, text in enumerate(texts):
        if not text:
            raise ValueError(f"{where(number)} has no label: give it one, or leave the row out")
    if classes is not None:
        return _from_names(texts, classes, where)
    if all(_INTEGER.fullmatch(text) for text in texts):
        return read_labels([int(text) for text in texts], len(texts), None, where)
    numeric = [bool(_FRACTION.fullmatch(text)) for text in texts]
    whole_alike = [bool(re.fullmatch(r"[-+]?[0-9]+", text)) for text in texts]
    if all(whole_alike):
        number = next(n for n, text in enumerate(texts) if not _INTEGER.fullmatch(text))
        raise ValueError(
            f"{where(number)} is {texts[number]!r}, which may be a number or a name: pass classes= with the "
            f"names in the order of their labels, or write it as {int(texts[number])}"
        )
    if all(numeric):
        return _rows(torch.tensor([float(text) for text in texts], dtype=torch.float64))
    missing = next(
        (n for n, text in enumerate(texts) if text.lower() in {"nan", "na", "n/a", "null", "none", "?"}), None
    )
    if missing is not None:
        raise ValueError(
            f"{where(missing)} is {texts[missing]!r}: give it a label, leave the row out, or pass classes= "
            "if that is a class name"
        )
    if any(numeric):
        number = next(n for n, is_number in enumerate(numeric) if is_number != numeric[0])
        raise ValueError(
            f"{where(number)} is {texts[number]!r}, but {where(0)} is {texts[0]!r}: if all are names, pass "
            "classes= with the names in the order of their labels"
        )
    return _from_names(texts, None, where)


def collated(targets: list[Any], numbers: dict[str, int]) -> torch.Tensor | list[Any]:
    """Collate the targets of a batch like torch's `default_collate`: integers as int64, floats as float64,
    booleans as bool; others stay a list.
    """
    if all(type(target) is int for target in targets):
        return torch.tensor(targets, dtype=torch.int64)
    if all(type(target) is float for target in targets):
        return torch.tensor(targets, dtype=torch.float64)
    if all(type(target) is bool for target in targets):
        return torch.tensor(targets, dtype=torch.bool)
    if numbers and all(isinstance(target, str) for target in targets):
        return torch.tensor([_number(target, numbers, "a sample") for target in targets], dtype=torch.int64)
    if all(_is_scalar(target) for target in targets) and len({str(target.dtype) for target in targets}) == 1:
        return torch.stack([torch.as_tensor(target) for target in targets])
    return targets


def _array(given: Any) -> torch.Tensor | None:
    """Return an array of numbers as a tensor of its type, or None."""
    if isinstance(given, torch.Tensor):
        return given.detach().cpu()
    values = getattr(given, "to_numpy", None)
    array = values() if callable(values) else given
    kind = getattr(getattr(array, "dtype", None), "kind", None)
    if kind in ("b", "i", "u", "f") and array.ndim > 0:
        import numpy

        if kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(numpy.int64)
        return torch.from_numpy(numpy.array(array))
    return None


def _from_tensor(array: torch.Tensor, classes: Sequence[str] | None, where: Callable[[int], str]) -> Labels:
    if classes is not None:
        raise ValueError(f"classes= needs labels that are names, but {where(0)} is {array[0].tolist()!r}")
    if array.is_floating_point():
        bad = torch.isnan(array.reshape(len(array), -1)).any(dim=1).nonzero()
        if len(bad):
            raise ValueError(f"{where(int(bad[0]))} has no label (NaN): give it one, or leave it out")
    elif array.ndim == 1 and array.dtype != torch.bool:
        return Labels([int(label) for label in array.tolist()], [])
    return _rows(array)


def _from_names(labels: list[str], classes: Sequence[str] | None, where: Callable[[int], str]) -> Labels:
    for number, label in enumerate(labels):
        if not label.strip():
            raise ValueError(f"{where(number)} has no label: give it one, or leave it out")
    if classes is not None:
        by_name = _numbers(classes)
        return Labels(
            [_number(label, by_name, where(index)) for index, label in enumerate(labels)], list(by_name)
        )
    if all(_PATH.search(label) for label in labels):
        # Paths of masks or annotation files.
        return Labels(list(range(len(labels))), [], labels)
    names = sorted(set(labels))
    by_name = {name: number for number, name in enumerate(names)}
    return Labels([by_name[label] for label in labels], names)


def _from_objects(labels: list[Any]) -> Labels:
    """Return a tensor for rows of equal length, else the list of objects."""
    shapes = {len(label) if isinstance(label, (list, tuple)) else -1 for label in labels}
    numbers = {type(part) for label in labels if isinstance(label, (list, tuple)) for part in label}
    if len(shapes) == 1 and -1 not in shapes and numbers in ({int}, {float}, {bool}):
        return _rows(torch.tensor(labels, dtype=torch.float64 if numbers == {float} else None))
    if all(isinstance(label, torch.Tensor) for label in labels):
        kinds = {(label.dtype, label.shape) for label in labels}
        if len(kinds) == 1:
            return _rows(torch.stack(labels))
    return Labels(list(range(len(labels))), [], labels)


def _rows(table: torch.Tensor) -> Labels:
    return Labels(list(range(len(table))), [], table)


def _numbers(classes: Sequence[str]) -> dict[str, int]:
    numbers = {str(name): number for number, name in enumerate(classes)}
    if len(numbers) < len(classes):
        raise ValueError("classes= contains a name twice")
    return numbers


def _number(name: str, numbers: dict[str, int], where: str) -> int:
    if name not in numbers:
        raise ValueError(f"{where} has the class {name!r}, which is not in classes=")
    return numbers[name]


def _check_present(label: Any, where: str) -> None:
    if label is None or (isinstance(label, float) and math.isnan(label)):
        raise ValueError(f"{where} has no label ({label}): give it one, or leave it out")


def _check_range(label: int, where: str) -> int:
    if label not in _INT64:
        raise ValueError(f"{where} is {label}, which does not fit into 64 bits: number the classes from 0")
    return label


def _is_scalar(label: Any) -> bool:
    """Return `True` for a scalar of NumPy or torch."""
    return getattr(label, "shape", None) == () and hasattr(label, "item") and hasattr(label, "dtype")
