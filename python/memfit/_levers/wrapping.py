"""Putting something around a module's forward, and taking it away again.

What is put there is bound to the module that is called, and not to the one that it was put on: a deep copy of
a module has it too, around its own weights.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import types
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .target import Undo

# Called with the module, with the forward that was there, and then with what the module is called with. It
# knows of the module only what it is given here: it is called for copies as well.
Around = Callable[..., Any]

_LAYERS = "_memfit_layers"


def wrap(module: nn.Module, around: Around, holds: str | None = None) -> Undo:
    """Let `around(module, forward, *args, **kwargs)` stand for the module's forward.

    The module itself stays as it is: its class, its names in the state dict, its hooks, which run outside.
    Several wraps lie around each other, and may be undone in any order. A module that is pickled comes back
    without them; `holds` names the lever without which it would be of no use.
    """
    own = module.__dict__.get("forward")
    inner = module.forward
    layers: dict[int, Any] = module.__dict__.setdefault(_LAYERS, {})
    place = next(number for number in range(len(layers) + 1) if number not in layers)

    @functools.wraps(inner)
    def forward(_module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        layer = getattr(_module, _LAYERS)[place]
        if layer.around is None:
            return layer.inner(*args, **kwargs)
        return layer.around(_module, layer.inner, *args, **kwargs)

    # A closure that a caller unwraps must not find the forward below it; what it takes is asked for by
    # trainers.
    del forward.__wrapped__  # type: ignore[attr-defined]
    with contextlib.suppress(ValueError, TypeError):
        taken = inspect.signature(inner)
        itself = inspect.Parameter("_module", inspect.Parameter.POSITIONAL_ONLY)
        forward.__signature__ = taken.replace(parameters=[itself, *taken.parameters.values()])  # type: ignore[attr-defined]
    layer = layers[place] = _Layer(around, inner, holds)
    bound = types.MethodType(forward, module)
    module.forward = bound

    def undo() -> None:
        layer.around = layer.holds = None
        if module.__dict__.get("forward") is not bound:
            # Something else was put around it since, and calls it: it lets through.
            return
        if own is None:
            del module.forward
        else:
            module.forward = own
        del layers[place]
        if not layers:
            del module.__dict__[_LAYERS]

    return undo


def wrap_call(module: nn.Module, around: Around) -> Undo:
    """The same around what the module was compiled to, outside of the compiled code; around its forward where
    it was not. A copy is not compiled, and has neither.
    """
    name = "_compiled_call_impl"
    compiled = getattr(module, name, None)
    if compiled is None:
        return wrap(module, around)
    spent = False

    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs) if spent else around(module, compiled, *args, **kwargs)

    setattr(module, name, call)

    def undo() -> None:
        nonlocal spent
        if module.__dict__.get(name) is call:
            setattr(module, name, compiled)
        spent = True

    return undo


class _Layer:
    """One wrap of one module; each copy of the module has its own."""

    __slots__ = ("around", "holds", "inner")

    def __init__(self, around: Around | None, inner: Callable[..., Any], holds: str | None) -> None:
        self.around = around
        self.inner = inner
        self.holds = holds

    def __deepcopy__(self, memo: dict[int, Any]) -> _Layer:
        return _Layer(self.around, copy.deepcopy(self.inner, memo), self.holds)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.holds is not None:
            raise pickle.PicklingError(
                f"a module cannot be pickled while `{self.holds}` holds a part of its weights\n"
                "hint: save its `state_dict()`, which has them whole, or undo the lever before"
            )
        if not isinstance(self.inner, types.MethodType):
            raise pickle.PicklingError(
                f"a module cannot be pickled with levers around a forward that is a {type(self.inner).__name__}\n"
                "hint: save its `state_dict()`, or undo the levers before"
            )
        return type(None), ()


def together(undone: list[Undo]) -> Undo:
    """One undo for several, the last first."""

    def undo() -> None:
        while undone:
            undone.pop()()

    return undo


def all_or_none(done: Iterable[Undo]) -> Undo:
    """One undo for what is done as `done`, a generator, is gone over. Where some of it fails, what was done
    before it is undone first.
    """
    undone: list[Undo] = []
    try:
        for undo in done:
            undone.append(undo)  # noqa: PERF402
    except BaseException:
        together(undone)()
        raise
    return together(undone)
