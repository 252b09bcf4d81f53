"""A loader's state, so that going over it once leaves nothing behind."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .randomness import generator_state, is_generator, set_generator_state
from .slots import Kept, attributes_of

# Attributes of attributes: a loader's sampler's data set's data set's transform.
_MAX_DEPTH = 5
_MAX_OBJECTS = 1000
# A list of transforms is short; a list of samples is not gone into.
_MAX_ENTRIES = 64
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, nn.Module, torch.Tensor)


class LoaderState:
    """Generators, counters and containers of a loader, its sampler, its data set and their transforms.

    Raises `ValueError` for an iterator: the batches that it gave cannot be given again.
    """

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, Iterator):
            raise ValueError(
                f"`loader` is an iterator ({type(loader).__name__}): the training would miss the batches that "
                "are looked at here\n"
                "hint: give what the iterator was made from, as the `DataLoader` itself"
            )
        self._loader = loader
        stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._saved = copy.deepcopy(loader.state_dict()) if stateful else None
        self._generators: list[tuple[Any, Any]] = []
        self._kept: list[Kept] = []
        self._walk(loader)

    def _walk(self, loader: Any) -> None:
        seen: set[int] = set()
        level = [loader]
        for _ in range(_MAX_DEPTH):
            following: list[Any] = []
            for each in level:
                if id(each) in seen or len(seen) >= _MAX_OBJECTS or isinstance(each, _OPAQUE):
                    continue
                seen.add(id(each))
                if is_generator(each):
                    self._generators.append((each, generator_state(each)))
                elif isinstance(each, (list, tuple)):
                    following += each if len(each) <= _MAX_ENTRIES else []
                elif hasattr(each, "__dict__"):
                    self._kept += [Kept(slot) for slot in attributes_of(type(each).__name__, each)]
                    following += vars(each).values()
            level = following

    def restore(self) -> None:
        """Put the loader back to where it was."""
        for generator, state in self._generators:
            set_generator_state(generator, state)
        for kept in self._kept:
            kept.restore()
        if self._saved is not None:
            self._loader.load_state_dict(self._saved)
