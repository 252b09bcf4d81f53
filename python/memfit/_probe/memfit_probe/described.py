"""Samples as `--synthetic-data` describes them: tensors, numbers, text and images, also within dictionaries,
lists and tuples.
"""

import functools
import math

from .known_datasets import picture

# Python's types of groups of fields, and their brackets in the syntax of the option.
GROUPS = {"dict": "{}", "list": "[]", "tuple": "()"}


class Described:
    """Makes up samples."""

    def __init__(self, torch, fields, mapping):
        self.torch = torch
        self.fields = fields
        self.mapping = mapping

    def __bool__(self):
        return bool(self.fields)

    def __str__(self):
        """Return the fields in the syntax of the option."""
        return shown(self.fields)

    @property
    def classes(self):
        """The number of classes: the first bound of an integer, or None."""
        return next((field["below"] for field in leaves(self.fields) if field["below"]), None)

    @property
    def label_classes(self):
        """The first bound of a single integer, or None."""
        labels = (field["below"] for field in leaves(self.fields) if field["below"] and not field["shape"])
        return next(labels, None)

    @property
    def row_bytes(self):
        """About how many bytes a row takes in a table."""
        return sum(4 * math.prod(field["shape"]) for field in leaves(self.fields))

    def sample(self, index):
        """Return one sample."""
        if isinstance(index, slice) or not isinstance(index, int):
            index = 0
        if self.mapping:
            return self._group("dict", self.fields, index)
        values = self._group("tuple", self.fields, index)
        return values[0] if len(values) == 1 else values

    def column(self, field, rows):
        """Return so many values of a field as a table has them."""
        return [plain(self._value(field, index)) for index in range(rows)]

    def _group(self, kind, fields, index):
        if kind == "dict":
            return {field["name"]: self._value(field, index) for field in fields}
        return {"list": list, "tuple": tuple}[kind](self._value(field, index) for field in fields)

    def _value(self, field, index):
        torch, dtype, shape = self.torch, field["dtype"], field["shape"]
        if dtype in GROUPS:
            return self._group(dtype, field["fields"], index)
        if field.get("text") is not None:
            return field["text"]
        if dtype == "str":
            return "word " * (shape[0] if shape else 32)
        if dtype == "pil":
            return picture("RGB", shape[-1], shape[-2]).copy()
        if not shape and field["below"] is not None:
            # Data sets return a label as an `int`.
            return index % field["below"]
        if dtype.startswith(("float", "bfloat")):
            return noise(torch, tuple(shape), getattr(torch, dtype)).clone()
        filled = 0 if field["below"] is None else index % field["below"]
        return torch.full(shape, filled, dtype=getattr(torch, dtype))


def leaves(fields):
    """Yield the fields that are no groups."""
    for field in fields:
        if field["dtype"] in GROUPS:
            yield from leaves(field["fields"])
        else:
            yield field


def shown(fields):
    """Return fields in the syntax of the option, without bounds."""
    words = []
    for field in fields:
        kind = field["dtype"]
        if kind in GROUPS:
            kind = shown(field["fields"]).join(GROUPS[kind])
        if field.get("text") is not None:
            kind = f'"{field["text"]}"'
        shape = ["x".join(map(str, field["shape"]))] if field["shape"] else []
        words.append(":".join([field["name"], *shape, kind]))
    return ", ".join(words)


def plain(value):
    """Return a value as a row of a table has it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


@functools.cache
def noise(torch, shape, dtype):
    """Return a tensor of noise. The script's own random numbers stay as they are."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
