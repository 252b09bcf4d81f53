"""What has to be known of a place in a script whose computation is put off, to carry it out later as it would
have run there.

That is the types that autocast gives there, and that nothing which goes in is changed in between. Where torch
itself runs code a second time, or in a sense of its own, nothing is put off: both runs have to keep the same.
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
    """When something was put off."""

    def __init__(self, lever: str, place: torch.device, inputs: Iterable[torch.Tensor]) -> None:
        self._lever = lever
        self._place = place.type
        self._enabled = torch.is_autocast_enabled(place.type)
        self._kind = torch.get_autocast_dtype(place.type)
        self._cached = torch.is_autocast_cache_enabled()
        self._inputs = [(each, each._version) for each in inputs if not each.is_inference()]

    def has_passed(self) -> bool:
        """Whether something that went in was changed since."""
        return any(each._version != version for each, version in self._inputs)

    def check(self) -> None:
        """What went in is what it was; what was to be computed from it cannot be told any more otherwise."""
        if self.has_passed():
            raise RuntimeError(
                f"`{self._lever}` put off what is computed from a tensor that was changed in place since, as an optimizer's step"
                f" changes weights{_HINT}, or ask for it before the change"
            )

    def same_types(self) -> bool:
        """Whether autocast gives the same types here."""
        if not (self._enabled or torch.is_autocast_enabled(self._place)):
            return True
        return (self._enabled, self._kind) == (
            torch.is_autocast_enabled(self._place),
            torch.get_autocast_dtype(self._place),
        )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast as it was."""
        kind = self._kind if self._enabled else None
        return torch.autocast(self._place, dtype=kind, enabled=self._enabled, cache_enabled=self._cached)


@contextlib.contextmanager
def learning() -> Iterator[None]:
    """What is computed within is learned from, whatever it is asked for by."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if scripts_checkpoint() or _in_scripts_second_pass():
            # What began before a checkpoint is none of what its two passes keep.
            stack.enter_context(nothing_around())
        yield


def nothing_around() -> contextlib.AbstractContextManager[Any]:
    """No hooks of anybody's see what is kept for a backward within."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def may_wait() -> bool:
    """Whether something may be put off here."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch.jit.is_tracing():
        return False
    if _transformed():
        return False
    return not _in_scripts_second_pass() and not scripts_checkpoint()


def _in_scripts_second_pass() -> bool:
    """What runs again in a backward ran as it was written the first time, unless it is memfit that has it run
    again.
    """
    return torch._C._current_graph_task_id() != -1 and getattr(_AGAIN, "passes", 0) == 0


def _transformed() -> bool:
    """Whether tensors stand for something else here: `torch.func`, or gradients that go forward."""
    if within_transform():
        return True
    return getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0


def within_transform() -> bool:
    """Whether a transform of `torch.func` runs."""
    functional = getattr(torch._C, "_functorch", None)
    stack = getattr(functional, "peek_interpreter_stack", None)
    return stack is not None and stack() is not None


def scripts_checkpoint() -> bool:
    """Whether this runs within the first pass of a checkpoint that the script itself asks for."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "checkpoint" and code.co_filename == _checkpoint.__file__:
            contexts = variables(frame).get("context_fn")
            if not getattr(contexts, "memfit", False):
                return True
        frame = frame.f_back
    return False


_AGAIN = threading.local()


@contextlib.contextmanager
def second_pass() -> Iterator[None]:
    """Within, what a forward computed is computed once more, by memfit's own doing."""
    _AGAIN.passes = getattr(_AGAIN, "passes", 0) + 1
    try:
        yield
    finally:
        _AGAIN.passes -= 1


def gradients_lost(lever: str) -> RuntimeError:
    """A gradient is asked for of what was put off, and went another way."""
    return RuntimeError(
        f"`{lever}` computed a loss without what its gradient is now asked of{_HINT}, or ask before the loss is computed"
    )


def left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that no compiler looks into, nor into what it calls."""
    return torch.compiler.disable(function) if hasattr(torch.compiler, "disable") else function
