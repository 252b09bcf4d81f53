"""Putting something around a module's forward, and taking it away again."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .target import Undo

# Called with the forward that was there, and then with what the module is called with.
Around = Callable[..., Any]


def wrap(module: nn.Module, around: Around) -> Undo:
    """Let `around(forward, *args, **kwargs)` stand for the module's forward.

    The module itself stays as it is: its class, its names in the state dict, its hooks, which run outside. Several wraps lie
    around each other, and may be undone in any order.
    """
    own = module.__dict__.get("forward")
    inner = module.forward

    @functools.wraps(inner)
    def forward(_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer.around(layer.inner, *args, **kwargs) if layer.around else layer.inner(*args, **kwargs)

    layer = _Layer(around, inner)
    # A closure that a caller unwraps must not find the forward below it; what it takes is asked for by trainers.
    del forward.__wrapped__  # type: ignore[attr-defined]
    with contextlib.suppress(ValueError, TypeError):
        taken = inspect.signature(inner)
        itself = inspect.Parameter("_module", inspect.Parameter.POSITIONAL_ONLY)
        forward.__signature__ = taken.replace(parameters=[itself, *taken.parameters.values()])  # type: ignore[attr-defined]
    bound = types.MethodType(forward, module)
    module.forward = bound

    def undo() -> None:
        if module.__dict__.get("forward") is bound:
            if own is None:
                del module.forward
            else:
                module.forward = own
        else:
            # Something else was put around it since, and calls it: it lets through.
            layer.around = None

    return undo


def wrap_call(module: nn.Module, around: Around) -> Undo:
    """The same around what the module was compiled to, outside of the compiled code; around its forward where it was not."""
    name = "_compiled_call_impl"
    compiled = getattr(module, name, None)
    if compiled is None:
        return wrap(module, around)
    layer = _Layer(around, compiled)

    def call(*args: Any, **kwargs: Any) -> Any:
        return layer.around(compiled, *args, **kwargs) if layer.around else compiled(*args, **kwargs)

    setattr(module, name, call)

    def undo() -> None:
        if module.__dict__.get(name) is call:
            setattr(module, name, compiled)
        else:
            layer.around = None

    return undo


class _Layer:
    __slots__ = ("around", "inner")

    def __init__(self, around: Around | None, inner: Callable[..., Any]) -> None:
        self.around = around
        self.inner = inner


def together(undone: list[Undo]) -> Undo:
    """One undo for several, the last first."""

    def undo() -> None:
        while undone:
            undone.pop()()

    return undo


def all_or_none(done: Iterable[Undo]) -> Undo:
    """One undo for what is done as `done`, a generator, is gone over. Where some of it fails, what was done before it is
    undone first."""
    undone: list[Undo] = []
    try:
        for undo in done:
            undone.append(undo)  # noqa: PERF402
    except BaseException:
        together(undone)()
        raise
    return together(undone)
