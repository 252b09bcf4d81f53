"""The levers of this folder by name: the function that applies each, and when.

    @lever("my-lever", Stage.MODEL, 65)
    def apply(target: Target, value: Any, name: str) -> Undo: ...

A module that registers a lever is found by itself; no list has to name it. It is imported only when one of
its levers is asked for, since some bring PyTorch's compiler along, which takes seconds: until then the
decorators are read from its source.
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
    """When a lever is applied, in this order. The Rust crate `memfit-vocabulary` has the same stages."""

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
    # The order within a stage. On a model, what changes weights comes before what wraps blocks, compiling
    # sees all of it, and what compiled modules keep goes to the host from outside.
    place: int
    apply: Apply
    # Whether it makes sense only where no gradients are recorded.
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
    """The module of each lever."""
    found: dict[str, str] = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(dict.fromkeys(_DECORATED.findall(file.read_text("utf-8")), file.stem))
    return found


def known(name: str) -> Lever | None:
    """A lever; `None` for a name that is no lever's."""
    if name not in _LEVERS and name in homes():
        try:
            import_module(f".{homes()[name]}", __package__)
        except ImportError as error:
            _LEVERS[name] = _missing(name, str(error))
    return _LEVERS.get(name)


def _missing(name: str, why: str) -> Lever:
    """A lever whose module cannot be imported with this release of PyTorch."""

    def apply(_target: Target, _value: Any, name: str) -> Undo:
        raise CannotApply(name, f"this release of PyTorch lacks something that it needs: {why}")

    return Lever(name, Stage.MODEL, 0, apply)


def levers() -> list[Lever]:
    """All levers, in the order in which they are applied."""
    found = [each for each in map(known, homes()) if each is not None]
    return sorted(found, key=lambda each: (each.stage, each.place))
