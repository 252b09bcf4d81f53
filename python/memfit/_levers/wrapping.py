"""Wraps a module's forward, and unwraps it.

The wrapper is bound to the module that is called, not to the one that it was installed on: a deep copy of a
module has it too, around its own weights.
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

# Called with the module, the original forward, and the arguments of the call. It must use only the module it
# is given here, because it is called for copies as well.
Around = Callable[..., Any]

_LAYERS = "_memfit_layers"


def wrap(module: nn.Module, around: Around, holds: str | None = None) -> Undo:
    """Replace the module's forward with `around(module, forward, *args, **kwargs)`.

    The module itself stays as it is: its class, its names in the state dict, its hooks, which run outside.
    Wrappers can be nested, and undone in any order. Unpickling a module drops them; `holds` names a lever
    that keeps a part of the weights, without which the module cannot be pickled.
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

    # Callers that follow `__wrapped__` must not find the inner forward; trainers do read its signature.
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
            # Another wrapper was put around it and calls it: it just forwards the call.
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
    """Wrap the compiled call of a module, outside of the compiled code, or its forward if it was not
    compiled. A copy is not compiled, and has neither.
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
    """One wrapper of one module; each copy of the module has its own."""

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
                f"a module cannot be pickled while `{self.holds}` holds part of its weights\n"
                "hint: save its `state_dict()`, which contains them in full, or undo the lever first"
            )
        if not isinstance(self.inner, types.MethodType):
            raise pickle.PicklingError(
                "a module cannot be pickled with levers around a forward of type "
                f"{type(self.inner).__name__}\n"
                "hint: save its `state_dict()`, or undo the levers first"
            )
        return type(None), ()


def together(undone: list[Undo]) -> Undo:
    """Combine several undo functions; the last one runs first."""

    def undo() -> None:
        while undone:
            undone.pop()()

    return undo


def all_or_none(done: Iterable[Undo]) -> Undo:
    """Combine the undo functions that a generator yields. If it fails, undo what was done so far."""
    undone: list[Undo] = []
    try:
        for undo in done:
            undone.append(undo)  # noqa: PERF402
    except BaseException:
        together(undone)()
        raise
    return together(undone)
