"""`checkpointing`: the activations of a block are not saved but recomputed in the backward pass.

The second forward pass sees the random state of the first, so dropout drops the same elements. It also sees
the first pass's buffers, such as running statistics, and its modules' attributes, such as counters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless
from torch.utils.checkpoint import checkpoint

from .blocks import blocks
from .later import within_transform
from .passes import Passes
from .registry import Stage, lever
from .target import CannotApply, Target, Undo, modules
from .wrapping import together, wrap

_UNCALLED = "the first step did not call it; name the modules that the model's forward calls"


@lever("checkpointing", Stage.MODEL, 100)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Checkpoint modules: `value` is a list of their names, or "blocks" for all repeated blocks."""
    chosen = blocks(target.model) if value in (True, "blocks") else value
    if not chosen:
        raise CannotApply(name, "the model has no repeated blocks; name the modules to checkpoint")
    names = [chosen] if isinstance(chosen, str) else chosen
    target.idle |= {(name, module): _UNCALLED for module in names}
    return together(
        [
            _one(target, module, path, name)
            for path, module in zip(names, modules(target, name, names), strict=True)
        ]
    )


def _one(target: Target, module: nn.Module, path: str, name: str) -> Undo:
    def around(called: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        target.takes_effect(name, path)
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if _holds_cache(called, args, kwargs):
            return forward(*args, **kwargs)
        args, kwargs = _without_caches(called, args, kwargs)
        if torch.compiler.is_compiling():
            body = _compiled_anyway(target, called, forward)
            return checkpoint(body, *args, use_reentrant=False, **kwargs)
        if _is_transformed():
            return forward(*args, **kwargs)
        # Modes that were active in the first pass, such as attention recognition, have to be active in the
        # second.
        modes = _modes()
        passes = Passes(called, modes, target.computes)

        def contexts() -> tuple[Any, Any]:
            return passes.first(), passes

        # Marks memfit's checkpoints, to distinguish them from the script's own.
        contexts.memfit = True  # type: ignore[attr-defined]
        for mode in modes:
            # Tensors deferred outside are computed outside, and those deferred inside are computed inside, so
            # that both passes save the same.
            args, kwargs, forward = mode.outside(args), mode.outside(kwargs), _outside(mode, forward)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return wrap(module, around)


def _outside(mode: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: mode.outside(forward(*args, **kwargs))


def _compiled_anyway(target: Target, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a checkpoint under compilation calls.

    Checkpoint and block become one graph. If something in the block cannot be part of it, the compiler skips
    the whole checkpoint, and torch runs it with the compiler disabled: then the block is compiled within it,
    with graph breaks.
    """
    known: list[Passes] = []

    def body(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        again = bool(known)
        if not again:
            known.append(Passes(module, [], target.computes))
        with known[0] if again else known[0].first():
            return _pieces(target, forward)(*args, **kwargs)

    return body


def _pieces(target: Target, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled forward, compiled once for each."""
    known: Any = target.pieces.get(forward)
    if known is None:
        known = target.pieces[forward] = (target.compiled or torch.compile)(forward)
    return known


def _is_transformed() -> bool:
    """Return `True` inside a `torch.func` transform, which does not support checkpoints, or a functional
    call, whose weights a second pass would not find.
    """
    if within_transform():
        return True
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code is _FUNCTIONAL:
            return True
        frame = frame.f_back
    return False


# The function that runs a module with replaced weights.
_FUNCTIONAL = getattr(getattr(stateless, "_functional_call", None), "__code__", None)


def _is_cache(value: Any) -> bool:
    """Return `True` for a key-value cache of transformers; a second pass would append to it again."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str, tuple, list, dict)):
        return False
    return any(
        each.__name__ == "Cache" and each.__module__.startswith("transformers.")
        for each in type(value).__mro__
    )


def _holds_cache(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return `True` if a block gets a cache it needs: one with entries for it, or one that a model in
    evaluation mode fills.
    """
    return any(
        not module.training or _length(value, module) != 0
        for value in (*args, *kwargs.values())
        if _is_cache(value)
    )


def _length(cache: Any, module: nn.Module) -> int:
    """Return the number of tokens that a cache holds for a block."""
    layer = next(
        (each.layer_idx for each in module.modules() if isinstance(getattr(each, "layer_idx", None), int)), 0
    )
    return int(cache.get_seq_length(layer))


def _without_caches(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Remove empty caches from the arguments of a model in training, as transformers does."""
    if not module.training:
        return args, kwargs
    return (
        tuple(None if _is_cache(value) else value for value in args),
        {key: None if _is_cache(value) else value for key, value in kwargs.items()},
    )


def _modes() -> list[Any]:
    """Return the active function modes that a second pass needs as well."""
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    return [mode for mode in stack() if getattr(mode, "in_second_pass", False)] if stack is not None else []
