"""Registers the levers of this package by name, with the function that applies each, and the order.

  @lever("my-lever", Stage.MODEL, 65)
  def apply(target: Target, value: Any, name: str) -> Undo: ...

A module that registers a lever is found automatically. It is imported only when one of its levers is used,
since some import PyTorch's compiler, which takes seconds; until then the decorators are read from its source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from .target import CannotApply, Target, Undo

Apply = Callable[[Target, Any, str], Undo]


class Stage(IntEnum):
    """The order in which levers are applied. The Rust crate `memfit-vocabulary` has the same stages."""

    ENVIRONMENT = 0
    DATA = 1
    MODEL = 2
    OPTIMIZER = 3
    STEP = 4


@dataclass(frozen=True)
class Lever:
    """A lever that can be applied."""

    name: str
    stage: Stage
    # The order within a stage. On a model, levers that change weights come before those that wrap blocks;
    # compiling comes after both, and offloading wraps compiled modules.
    place: int
    apply: Apply
    # `True` if it only makes sense without gradients.
    inference: bool = False


_LEVERS: dict[str, Lever] = {}


def lever(name: str, stage: Stage, place: int, *, inference: bool = False) -> Callable[[Apply], Apply]:
    """Register the function that applies a lever."""

    def register(apply: Apply) -> Apply:
        if name in _LEVERS:
            raise ValueError(f"two modules register the lever `{name}`")
        _LEVERS[name] = Lever(name, stage, place, apply, inference)
        return apply

    return register


_DECORATED = re.compile(r'^@lever\(\s*"([^"]+)"', re.MULTILINE)


@functools.cache
def homes() -> dict[str, str]:
    """Return the module of each lever."""
    found: dict[str, str] = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(dict.fromkeys(_DECORATED.findall(file.read_text("utf-8")), file.stem))
    return found


def known(name: str) -> Lever | None:
    """Return a lever by name, or `None`."""
    if name not in _LEVERS and name in homes():
        try:
            import_module(f".{homes()[name]}", __package__)
        except ImportError as error:
            _LEVERS[name] = _missing(name, str(error))
    return _LEVERS.get(name)


def _missing(name: str, why: str) -> Lever:
    """Return a lever whose module cannot be imported with this PyTorch version."""

    def apply(_target: Target, _value: Any, name: str) -> Undo:
        raise CannotApply(name, f"this PyTorch version lacks a required feature: {why}")

    return Lever(name, Stage.MODEL, 0, apply)


def levers() -> list[Lever]:
    """Return all levers, in the order in which they are applied."""
    found = [each for each in map(known, homes()) if each is not None]
    return sorted(found, key=lambda each: (each.stage, each.place))
