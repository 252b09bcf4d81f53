"""JSON to dataclasses, by their annotations."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from .._errors import MemfitError
from .report import Report

R = TypeVar("R", bound=Report)
MODULES = ("run", "plan", "explain", "check", "cards")
#: Fields of a report that its JSON does not have.
OUTSIDE = frozenset(field.name for field in dataclasses.fields(Report))


def decode(kind: type[R], document: dict[str, Any], *, text: str = "", folder: str = "") -> R:
    """Return a report from its JSON.

    Fields of a newer memfit are in `raw` only; missing optional ones are None.
    """
    expected = f"memfit.{kind.__name__.removesuffix('Report').lower()}/1"
    found = document.get("schema") if isinstance(document, dict) else None
    if found != expected:
        raise MemfitError(f"the report has the schema {found!r} instead of {expected}")
    try:
        values = _values(kind, document)
        return kind(**values, raw=document, text=text, folder=folder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MemfitError(f"the report does not follow its schema {expected}: {error!r}") from error


def encode(value: Any) -> Any:
    """Return the JSON of a decoded value, without what JSON did not have."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        outside = OUTSIDE if isinstance(value, Report) else frozenset()
        fields = (field.name for field in dataclasses.fields(value) if field.name not in outside)
        return {name: encode(getattr(value, name)) for name in fields}
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        return {name: encode(each) for name, each in value.items()}
    return value


def _values(kind: type, document: dict[str, Any]) -> dict[str, Any]:
    return {name: read(document[name]) for name, read in _readers(kind).items() if name in document}


@functools.cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(kind, None, _namespace())
    return {
        field.name: _reader(hints[field.name])
        for field in dataclasses.fields(kind)
        if field.name not in OUTSIDE or not issubclass(kind, Report)
    }


@functools.cache
def _namespace() -> dict[str, Any]:
    """All shapes: those of two modules may contain each other."""
    return {
        name: value
        for module in MODULES
        for name, value in vars(import_module(f"memfit.results.{module}")).items()
        if not name.startswith("__")
    }


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads a value of an annotation."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return lambda value: hint(**_values(hint, value))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            each = _reader(arguments[0])
            return lambda value: tuple(each(item) for item in value)
        parts = [_reader(argument) for argument in arguments]
        return lambda value: tuple(part(item) for part, item in zip(parts, value, strict=True))
    if origin is dict:
        inner = _reader(arguments[1])
        return lambda value: {name: inner(item) for name, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        readers = {list if typing.get_origin(one) is tuple else one: _reader(one) for one in arguments}
        # A list, one shape, or a plain value: the JSON value shows which.
        shapes = [read for one, read in readers.items() if dataclasses.is_dataclass(one)]

        def read(value: Any) -> Any:
            if isinstance(value, list) and list in readers:
                return readers[list](value)
            return shapes[0](value) if isinstance(value, dict) and shapes else value

        return read
    return lambda value: value
