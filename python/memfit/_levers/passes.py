"""The passes of one forward that is run again for its backward: each begins as the first did, and only the
first leaves a trace.

What a forward leaves behind besides its output is in its modules' buffers and attributes, and in the random
numbers of Python and NumPy (those of torch are put back by whoever runs it again). What it changes is found
by looking: at first everything small enough is copied before the forward, from then on only what has changed
before.
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
# What every module has, and no forward sets.
_OWN = frozenset(nn.Module().__dict__)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# A larger tensor in an attribute is rather something that was computed than something to begin with: it is
# not kept for a second pass.
_MOST = 1 << 20
# What forwards were seen to change, by module and by whether it trains: such is copied each time.
_Names = dict[bool, set[str]]
_seen: weakref.WeakKeyDictionary[nn.Module, _Names] = weakref.WeakKeyDictionary()
# In the place of what was there before a pass: nothing was; it does not matter, or was not kept.
_MISSING, _ANY = object(), object()


class Passes:
    """What is known of one call: a context for its first pass, and one for each that follows (the object
    itself).
    """

    def __init__(self, module: nn.Module, modes: list[Any], computes: bool = True) -> None:
        self._module = module
        # What the first pass ran within, as the recognition of attention, the second has to as well.
        self._modes = modes
        # Whether tensors say by their numbers that they were changed.
        self._computes = computes
        # Where the first pass changed something, and what was there before.
        self._began: list[tuple[dict[str, Any], str, Any]] = []
        self._numbers: list[tuple[Any, Any]] = []
        self._running: list[contextlib.ExitStack] = []

    def first(self) -> _First:
        """The context of the first pass."""
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
    """Finds what a pass changes."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        # Each place with what is there, its version, and a copy where there is one.
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
                # In training it takes the batch's own statistics, whatever those so far are.
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
        # Nothing of it is kept that did not change.
        for each in (self._before, self._norms, self._new, self._known, self._keys, self._numbers):
            each.clear()  # type: ignore[attr-defined]

    def _of_norms(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        for norm in self._norms:
            yield from (
                (norm._buffers, key, _ANY) for key, value in norm._buffers.items() if value is not None
            )

    def _changed(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        for place, keys in self._keys:
            # What the first pass finds missing and makes, a later one has to make as well.
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
            # Where it was another tensor from then on, the one before is as it was.
            yield place, key, copy if copy is not None else value if replaced and not written else _ANY

    def _differs(self, value: torch.Tensor, copy: torch.Tensor | None) -> bool:
        """Whether numbers were written in a way that tensors do not count, as through `.data`."""
        if copy is None or not (self._passes._computes and value.device.type != "meta"):
            return False
        if value.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        return not torch.equal(value.detach(), copy)


class _Again:
    """A later pass: it begins as the first did, and what was there when it began is put back."""

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
        # Lists and the like are added to where they are.
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
            # One that stands in several places is one in this pass as well.
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
    """Those whose buffers and attributes are Python's: a script's own are where nobody can look."""
    return (each for each in module.modules() if not isinstance(each, torch.jit.ScriptModule))


def _state(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """What a forward may begin with: buffers, and attributes that are small."""
    for key, value in module._buffers.items():
        if _is_plain(value):
            yield module._buffers, key, value
    if type(module).__module__.startswith("torch.nn.modules."):
        return
    for key, value in module.__dict__.items():
        if key in _OWN:
            continue
        if type(value) in _PLAIN or (_is_plain(value) and value.nbytes <= _MOST):
            yield module.__dict__, key, value


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout == torch.strided and not value.is_inference()


def _generators() -> Iterator[tuple[Any, Any]]:
    """How random numbers beside torch's are read and set; NumPy's only where somebody has imported it."""
    yield random.getstate, random.setstate
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield numpy.get_state, numpy.set_state


def _alike(one: Any, other: Any) -> bool:
    """Whether two states of a generator are one."""
    parts = zip(one, other, strict=True)
    return all(a.tobytes() == b.tobytes() if hasattr(a, "tobytes") else a == b for a, b in parts)


def _refill(value: Any, content: Any) -> None:
    if value == content if type(value) is set else len(value) == len(content):
        return
    value.clear()
    value.extend(content) if isinstance(value, list) else value.update(content)
