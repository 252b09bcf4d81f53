"""`checkpointing`: what a block computes is not kept for the backward but computed once more there.

Random numbers are put back for the second time, so dropout drops the same, and so is what else a forward
changes: buffers, as running statistics, and what its modules count or note in their attributes.
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


@lever("checkpointing", Stage.MODEL, 100)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Checkpoint modules: `value` is a list of their names, or "blocks" for all repeated blocks."""
    chosen = blocks(target.model) if value in (True, "blocks") else value
    if not chosen:
        raise CannotApply(
            name, "the model has no repeated blocks; name the modules that are to be checkpointed"
        )
    names = [chosen] if isinstance(chosen, str) else chosen
    target.uncalled |= dict.fromkeys(names, name)
    return together(
        [_one(target, module, path) for path, module in zip(names, modules(target, name, names), strict=True)]
    )


def _one(target: Target, module: nn.Module, path: str) -> Undo:
    def around(called: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        target.uncalled.pop(path, None)
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
        # What the first pass ran within, as the recognition of attention, the second has to as well.
        modes = _modes()
        passes = Passes(called, modes, target.computes)

        def contexts() -> tuple[Any, Any]:
            return passes.first(), passes

        # So that it is told from checkpoints of the script's own, whose second pass is none of memfit's.
        contexts.memfit = True  # type: ignore[attr-defined]
        for mode in modes:
            # What was put off outside is computed outside, and what is put off inside inside: both passes
            # keep the same.
            args, kwargs, forward = mode.outside(args), mode.outside(kwargs), _outside(mode, forward)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return wrap(module, around)


def _outside(mode: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: mode.outside(forward(*args, **kwargs))


def _compiled_anyway(target: Target, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """What a checkpoint that is being compiled calls.

    Checkpoint and block become one graph. Where something in the block can't be part of it, the compiler
    leaves the whole checkpoint alone, and torch runs it with the compiler switched off: then the block is
    compiled within it, in pieces.
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
    """The forward, compiled; once for each."""
    known: Any = target.pieces.get(forward)
    if known is None:
        known = target.pieces[forward] = (target.compiled or torch.compile)(forward)
    return known


def _is_transformed() -> bool:
    """Whether a transform of `torch.func` runs, which knows no checkpoints, or weights stand in for the
    module's own, which a second pass would not find.
    """
    if within_transform():
        return True
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code is _FUNCTIONAL:
            return True
        frame = frame.f_back
    return False


# What runs a module with other weights than its own.
_FUNCTIONAL = getattr(getattr(stateless, "_functional_call", None), "__code__", None)


def _is_cache(value: Any) -> bool:
    """Whether it is what transformers' models keep from call to call; a second pass would add to it a second
    time.
    """
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str, tuple, list, dict)):
        return False
    return any(
        each.__name__ == "Cache" and each.__module__.startswith("transformers.")
        for each in type(value).__mro__
    )


def _holds_cache(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a block is given a cache that it cannot do without: one that has something for it, or one that
    is being filled by a model that does not train.
    """
    return any(
        not module.training or _length(value, module) != 0
        for value in (*args, *kwargs.values())
        if _is_cache(value)
    )


def _length(cache: Any, module: nn.Module) -> int:
    """Tokens that a cache has for a block."""
    layer = next(
        (each.layer_idx for each in module.modules() if isinstance(getattr(each, "layer_idx", None), int)), 0
    )
    return int(cache.get_seq_length(layer))


def _without_caches(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An empty cache of a model that trains is left out, as transformers does it."""
    if not module.training:
        return args, kwargs
    return (
        tuple(None if _is_cache(value) else value for value in args),
        {key: None if _is_cache(value) else value for key, value in kwargs.items()},
    )


def _modes() -> list[Any]:
    """The modes that functions of torch run within here, and have to in a second pass as well."""
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    return [mode for mode in stack() if getattr(mode, "in_second_pass", False)] if stack is not None else []
