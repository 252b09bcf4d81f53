"""Defers computations of a script, to run them later as they would have run at the original place.

This requires the data types that autocast gives there, and inputs that do not change in between. Nothing is
deferred where torch itself runs code twice or transforms it: both runs have to save the same tensors.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import checkpoint as _checkpoint

from .variables import variables

_HINT = "\nhint: leave this lever out"


class Moment:
    """The point in time at which something was deferred."""

    def __init__(self, lever: str, place: torch.device, inputs: Iterable[torch.Tensor]) -> None:
        self._lever = lever
        self._place = place.type
        self._enabled = torch.is_autocast_enabled(place.type)
        self._kind = torch.get_autocast_dtype(place.type)
        self._cached = torch.is_autocast_cache_enabled()
        self._inputs = [(each, each._version) for each in inputs if not each.is_inference()]

    def has_passed(self) -> bool:
        """Return `True` if an input has changed since."""
        return any(each._version != version for each, version in self._inputs)

    def check(self) -> None:
        """Raise an error if an input has changed since: the deferred result can no longer be computed."""
        if self.has_passed():
            raise RuntimeError(
                f"`{self._lever}` deferred a computation whose input was then changed in place, as an "
                f"optimizer's step changes weights{_HINT}, or read the result before the change"
            )

    def same_types(self) -> bool:
        """Return `True` if autocast gives the same data types here."""
        if not (self._enabled or torch.is_autocast_enabled(self._place)):
            return True
        return (self._enabled, self._kind) == (
            torch.is_autocast_enabled(self._place),
            torch.get_autocast_dtype(self._place),
        )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Restore the autocast settings of that time."""
        kind = self._kind if self._enabled else None
        return torch.autocast(self._place, dtype=kind, enabled=self._enabled, cache_enabled=self._cached)


@contextlib.contextmanager
def learning() -> Iterator[None]:
    """Record gradients within, whatever mode the caller is in."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if scripts_checkpoint() or _in_scripts_second_pass():
            # Tensors from before a checkpoint are not among those its two passes save.
            stack.enter_context(nothing_around())
        yield


def nothing_around() -> contextlib.AbstractContextManager[Any]:
    """Suspend all saved-tensor hooks."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def may_wait() -> bool:
    """Return `True` if a computation may be deferred here."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch.jit.is_tracing():
        return False
    if _transformed():
        return False
    return not _in_scripts_second_pass() and not scripts_checkpoint()


def _in_scripts_second_pass() -> bool:
    """Return `True` in a recomputation that is not memfit's own: its first pass deferred nothing."""
    return torch._C._current_graph_task_id() != -1 and getattr(_recomputation, "passes", 0) == 0


def _transformed() -> bool:
    """Return `True` under `torch.func` or forward-mode differentiation, where tensors have another
    meaning.
    """
    if within_transform():
        return True
    return getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0


def within_transform() -> bool:
    """Return `True` inside a `torch.func` transform."""
    functional = getattr(torch._C, "_functorch", None)
    stack = getattr(functional, "peek_interpreter_stack", None)
    return stack is not None and stack() is not None


def scripts_checkpoint() -> bool:
    """Return `True` inside the first pass of a checkpoint of the script's own."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "checkpoint" and code.co_filename == _checkpoint.__file__:
            contexts = variables(frame).get("context_fn")
            if not getattr(contexts, "memfit", False):
                return True
        frame = frame.f_back
    return False


_recomputation = threading.local()


@contextlib.contextmanager
def second_pass() -> Iterator[None]:
    """Mark the code within as memfit's own recomputation of a forward pass."""
    _recomputation.passes = getattr(_recomputation, "passes", 0) + 1
    try:
        yield
    finally:
        _recomputation.passes -= 1


def gradients_lost(lever: str) -> RuntimeError:
    """Return the error for a gradient of a deferred tensor that the loss did not use."""
    return RuntimeError(
        f"`{lever}` computed a loss without materialising a tensor whose gradient is now requested{_HINT}, "
        "or request it before the loss is computed"
    )


def left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Disable compilation of a function and of everything it calls."""
    return torch.compiler.disable(function) if hasattr(torch.compiler, "disable") else function
