"""Recomputes a forward pass for activation checkpointing: each pass starts from the same state, and only the
first one changes any.

Besides its output, a forward pass changes its modules' buffers and attributes, and the random state of Python
and NumPy (checkpoint restores that of torch itself). Changes are detected: the first time, everything small
is copied before the pass; later only what changed before.
"""

from __future__ import annotations

import contextlib
import random
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .later import second_pass

_NORM = nn.modules.batchnorm._NormBase
# Attributes that every module has, and no forward pass sets.
_OWN = frozenset(nn.Module().__dict__)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Maximum bytes of a tensor attribute that is saved for the second pass. A larger one is more likely a result
# than an input.
_MAX_BYTES = 1 << 20
# Names that forward passes were seen to change, by module and training mode; these are copied each time.
_Names = dict[bool, set[str]]
_seen: weakref.WeakKeyDictionary[nn.Module, _Names] = weakref.WeakKeyDictionary()
# Placeholders for a previous value: there was none; or it is irrelevant or was not saved.
_MISSING, _ANY = object(), object()


class Passes:
    """The state of one call: a context for its first pass, and the object itself as the context of each later
    one.
    """

    def __init__(self, module: nn.Module, modes: list[Any], computes: bool = True) -> None:
        self._module = module
        # Modes that were active in the first pass, such as attention recognition, have to be active in the
        # second.
        self._modes = modes
        # `True` if tensors hold computed values, so that changes can be seen in them.
        self._computes = computes
        # Locations that the first pass changed, with their previous values.
        self._began: list[tuple[dict[str, Any], str, Any]] = []
        self._numbers: list[tuple[Any, Any]] = []
        self._running: list[contextlib.ExitStack] = []

    def first(self) -> _First:
        """Return the context of the first pass."""
        return _First(self)

    def __enter__(self) -> None:
        again = _Again(self._module, self._began, self._numbers)
        within = contextlib.ExitStack()
        within.callback(again.put_back)
        for context in (second_pass(), *self._modes):
            within.enter_context(context)
        self._running.append(within)

    def __exit__(self, *_error: Any) -> None:
        self._running.pop().close()


class _First:
    """Detects the changes of a pass."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        # Each location with its value, version, and a copy if there is one.
        self._before: list[tuple[dict[str, Any], str, Any, int, Any]] = []
        self._norms: list[nn.Module] = []
        self._new: list[nn.Module] = []
        self._known: dict[int, tuple[nn.Module, set[str]]] = {}
        self._keys: list[tuple[dict[str, Any], set[str]]] = []
        self._numbers: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> None:
        self._numbers = [(read, write, read()) for read, write in _generators()]
        for module in _modules(self._passes._module):
            if isinstance(module, _NORM) and type(module).__module__.startswith("torch."):
                # In training it uses the batch's statistics, and the running ones do not matter.
                if module.training and module.track_running_stats:
                    self._norms.append(module)
                continue
            names = _seen.setdefault(module, {}).get(module.training)
            if names is None:
                self._new.append(module)
            self._keys += [(place, set(place)) for place in (module._buffers, module.__dict__)]
            for place, key, value in _state(module):
                self._known[id(place)] = (module, names if names is not None else set())
                copied = isinstance(value, torch.Tensor) and not value.requires_grad
                copied = copied and (names is None or key in names)
                copy = value.detach().clone() if copied else None
                version = value._version if isinstance(value, torch.Tensor) else 0
                self._before.append((place, key, value, version, copy))

    def __exit__(self, kind: Any, *_error: Any) -> None:
        if kind is None:
            self._passes._began = [*self._of_norms(), *self._changed()]
            self._passes._numbers = [
                (write, before) for read, write, before in self._numbers if not _alike(before, read())
            ]
        # Keep references only to what changed.
        for each in (self._before, self._norms, self._new, self._known, self._keys, self._numbers):
            each.clear()  # type: ignore[attr-defined]

    def _of_norms(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        for norm in self._norms:
            yield from (
                (norm._buffers, key, _ANY) for key, value in norm._buffers.items() if value is not None
            )

    def _changed(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        for place, keys in self._keys:
            # An attribute that the first pass found missing and created has to be missing again for later
            # ones.
            yield from ((place, key, _MISSING) for key in place if key not in keys)
        for module in self._new:
            _seen[module][module.training] = set()
        for place, key, value, version, copy in self._before:
            module, names = self._known[id(place)]
            now = place.get(key, _MISSING)
            if not isinstance(value, torch.Tensor):
                if now is not value:
                    yield place, key, value
                continue
            replaced, written = now is not value, value._version != version
            if value.requires_grad:
                if replaced:
                    yield place, key, _ANY if written else value
                continue
            if not (replaced or written or key in names) and not self._differs(value, copy):
                continue
            _seen[module].setdefault(module.training, set()).add(key)
            # If another tensor was assigned, the previous one is unchanged.
            yield place, key, copy if copy is not None else value if replaced and not written else _ANY

    def _differs(self, value: torch.Tensor, copy: torch.Tensor | None) -> bool:
        """Return `True` if values were changed without a new version, as through `.data`."""
        if copy is None or not (self._passes._computes and value.device.type != "meta"):
            return False
        if value.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        return not torch.equal(value.detach(), copy)


class _Again:
    """A later pass: starts from the state of the first one, and restores the current state afterwards."""

    def __init__(
        self,
        module: nn.Module,
        began: list[tuple[dict[str, Any], str, Any]],
        numbers: list[tuple[Any, Any]],
    ) -> None:
        self._attributes = [
            (each.__dict__, {key: value for key, value in each.__dict__.items() if key not in _OWN})
            for each in _modules(module)
        ]
        # Lists, dictionaries and sets are changed in place.
        self._contents = [
            (value, value.copy())
            for _, held in self._attributes
            for value in held.values()
            if type(value) in (list, dict, set)
        ]
        self._aside = [(place, key, place.get(key, _MISSING)) for place, key, _ in began]
        self._numbers = [(write, read()) for read, write in _generators()] if numbers else []
        scratch: dict[int, Any] = {}
        for place, key, before in began:
            now = place.get(key)
            if before is _MISSING:
                place.pop(key, None)
                continue
            source = now if before is _ANY else before
            if not isinstance(source, torch.Tensor) or source.requires_grad:
                place[key] = source
                continue
            # A tensor in several places stays shared in this pass.
            if id(now) not in scratch:
                scratch[id(now)] = source.detach().clone()
            place[key] = scratch[id(now)]
        for write, state in numbers:
            write(state)

    def put_back(self) -> None:
        for write, state in self._numbers:
            write(state)
        for value, content in self._contents:
            _refill(value, content)
        for place, held in self._attributes:
            for key in [key for key in place if key not in _OWN and key not in held]:
                del place[key]
            place.update(held)
        for place, key, value in self._aside:
            if value is _MISSING:
                place.pop(key, None)
            else:
                place[key] = value


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules, without scripted ones, whose buffers and attributes are not accessible."""
    return (each for each in module.modules() if not isinstance(each, torch.jit.ScriptModule))


def _state(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the state that a forward pass may read: buffers, and small attributes."""
    for key, value in module._buffers.items():
        if _is_plain(value):
            yield module._buffers, key, value
    if type(module).__module__.startswith("torch.nn.modules."):
        return
    for key, value in module.__dict__.items():
        if key in _OWN:
            continue
        if type(value) in _PLAIN or (_is_plain(value) and value.nbytes <= _MAX_BYTES):
            yield module.__dict__, key, value


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout == torch.strided and not value.is_inference()


def _generators() -> Iterator[tuple[Any, Any]]:
    """Yield functions that read and set the random state of Python, and of NumPy if it is imported."""
    yield random.getstate, random.setstate
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield numpy.get_state, numpy.set_state


def _alike(one: Any, other: Any) -> bool:
    """Return `True` if two generator states are equal."""
    parts = zip(one, other, strict=True)
    return all(a.tobytes() == b.tobytes() if hasattr(a, "tobytes") else a == b for a, b in parts)


def _refill(value: Any, content: Any) -> None:
    if value == content if type(value) is set else len(value) == len(content):
        return
    value.clear()
    value.extend(content) if isinstance(value, list) else value.update(content)
