"""`checkpointing`: what a block computes is not kept for the backward but computed once more there.

Random numbers are put back for the second time, so dropout drops the same. Buffers that a forward writes to are written to
twice: batch normalisation would take its running statistics twice, so its momentum is off in the second pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .blocks import blocks
from .later import second_pass
from .target import CannotApply, Target, Undo, modules
from .wrapping import together, wrap

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
# What language models keep from call to call; a second pass would add to it a second time.
_CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")


def apply(target: Target, value: Any, name: str) -> Undo:
    """Checkpoint modules: `value` is a list of their names, or "blocks" for all repeated blocks."""
    chosen = blocks(target.model) if value in (True, "blocks") else value
    if not chosen:
        raise CannotApply(
            name, "the model has no repeated blocks; name the modules that are to be checkpointed"
        )
    return together([_one(target, module) for module in modules(target, name, chosen)])


def _one(target: Target, module: nn.Module) -> Undo:
    norms = [each for each in module.modules() if isinstance(each, _BATCH_NORM) and each.track_running_stats]

    def around(module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        for cache in _CACHES:
            if kwargs.get(cache) is not None and module.training:
                kwargs[cache] = None
        if torch.compiler.is_compiling():
            return checkpoint(_compiled_anyway(target, forward, norms), *args, use_reentrant=False, **kwargs)
        # What the first pass ran within, as the recognition of attention, the second has to as well.
        modes = [mode for mode in _modes() if getattr(mode, "in_second_pass", False)]

        def contexts() -> tuple[Any, Any]:
            return contextlib.nullcontext(), _Again(norms, modes)

        # So that it is told from checkpoints of the script's own, whose second pass is none of memfit's.
        contexts.memfit = True  # type: ignore[attr-defined]
        for mode in modes:
            # What was put off outside is computed outside, and what is put off inside inside: both passes keep the same.
            args, kwargs, forward = mode.outside(args), mode.outside(kwargs), _outside(mode, forward)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return wrap(module, around)


def _outside(mode: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: mode.outside(forward(*args, **kwargs))


class _Again:
    """What a second pass runs within; there may be several."""

    def __init__(self, norms: list[Any], modes: list[Any]) -> None:
        self._parts = norms, modes
        self._open: list[Any] = []

    def __enter__(self) -> None:
        self._open.append(_second_pass(*self._parts))
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._open.pop().__exit__(*error)


def _compiled_anyway(target: Target, forward: Callable[..., Any], norms: list[Any]) -> Callable[..., Any]:
    """What a checkpoint that is being compiled calls.

    Checkpoint and block become one graph. Where something in the block can't be part of it, the compiler leaves the whole
    checkpoint alone, and torch runs it with the compiler switched off: then the block is compiled within it, in pieces.
    """

    def body(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        again = _in_backward() and norms
        with _second_pass(norms, []) if again else contextlib.nullcontext():
            return _pieces(target, forward)(*args, **kwargs)

    return body


def _pieces(target: Target, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward, compiled; once for each."""
    known: Any = target.pieces.get(forward)
    if known is None:
        known = target.pieces[forward] = (target.compiled or torch.compile)(forward)
    return known


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _modes() -> list[Any]:
    """The modes that functions of torch run within here."""
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    return list(stack()) if stack is not None else []


@contextlib.contextmanager
def _second_pass(norms: list[Any], modes: list[Any]) -> Iterator[None]:
    """Running statistics stay as the first pass left them; what is normalised with in training is the batch's own."""
    kept = [
        (norm, norm.running_mean, norm.running_var, norm.num_batches_tracked)
        for norm in norms
        if norm.training
    ]
    for norm, mean, variance, tracked in kept:
        norm.running_mean = mean.clone() if mean is not None else None
        norm.running_var = variance.clone() if variance is not None else None
        norm.num_batches_tracked = tracked.clone() if tracked is not None else None
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(second_pass())
            for mode in modes:
                stack.enter_context(mode)
            yield
    finally:
        for norm, mean, variance, tracked in kept:
            norm.running_mean, norm.running_var, norm.num_batches_tracked = mean, variance, tracked
