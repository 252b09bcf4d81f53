"""`chunked-loss`: the logits of a large vocabulary are never there as a whole.

The model's last linear layer gives a promise of its logits instead of them. What training code does with logits before the
loss (reshape, shift by one token, cast, move the classes' dimension) is done to the hidden states, and `cross_entropy` runs
piece by piece: logits of so many tokens, their loss, and its gradients. Whatever else is asked of the promise is answered by
the real logits, computed then as they would have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .piecewise import Pieces, cross_entropy
from .several import models
from .target import CannotApply, Target, Undo, modules, table
from .wrapping import wrap

# A layer with fewer classes makes no logits that are worth it.
LEAST_CLASSES = 4096
# Bytes of fp32 logits that a piece may always have.
_PIECE = 64 << 20
# For each piece the layer's weight is read, cast, and its gradient added up: with fewer tokens in a piece than this many times
# the layer's inputs, that takes longer than the logits do. A part of all tokens is small enough where that is more.
_TOKENS_PER_INPUT = 2
_PARTS = 8


def apply(target: Target, value: Any, name: str) -> Undo:
    """Defer the head's logits: `value` is the tokens in a piece, true for memfit's choice, or a table with `head` and
    `tokens`."""
    wanted = table(value, "tokens")
    head = modules(target, name, wanted["head"])[0] if wanted.get("head") else _head(target.model, name)
    asked = wanted.get("tokens")
    least = max(_PIECE // (4 * head.out_features), 64)

    def around(called: nn.Linear, forward: Callable[..., torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return forward(hidden)
        rows = hidden.numel() // max(hidden.shape[-1], 1)
        tokens = asked or max(least, min(_TOKENS_PER_INPUT * hidden.shape[-1], rows // _PARTS))
        return _promise(forward, hidden, int(tokens), called, target)

    # A compiled model stops before the promise, and leaves its loss to this.
    return wrap(head, _left_alone(around))


def _left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that no compiler looks into, nor into what it calls."""
    return torch.compiler.disable(function) if hasattr(torch.compiler, "disable") else function


def _head(model: nn.Module, name: str) -> Any:
    """The layer that makes the logits: what the model says it is, or the one with by far the most classes."""
    for each in models(model):
        known = getattr(each, "get_output_embeddings", None)
        found = known() if callable(known) else None
        if isinstance(found, nn.Linear):
            return found
    wide = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and module.out_features >= max(LEAST_CLASSES, module.in_features)
    ]
    if not wide:
        raise CannotApply(
            name, f"no linear layer has {LEAST_CLASSES} classes or more; name it with `head` if there is one"
        )
    widest = max(wide, key=lambda module: module.out_features)
    if sum(module.out_features == widest.out_features for module in wide) > 1:
        raise CannotApply(
            name, "several layers have as many classes; name the one before the loss with `head`"
        )
    return widest


@dataclass(frozen=True)
class _Deferred:
    """How the logits of a promise would be made."""

    forward: Callable[..., torch.Tensor]
    hidden: torch.Tensor
    # In a piece.
    tokens: int
    head: nn.Linear
    target: Target
    # The type that the layer gives.
    kind: torch.dtype
    # Types that the logits are cast to, one after the other.
    casts: tuple[torch.dtype, ...] = ()
    # Where the classes are: the last dimension, or the second.
    second: bool = False
    # The layer, where it is one product of matrices and nothing more.
    linear: nn.Linear | None = None


class Logits(torch.Tensor):
    """A promise of `forward(hidden)`: has its shape and type, and no memory."""

    _memfit_deferred: _Deferred
    _memfit_real: torch.Tensor | None

    # What a compiler made of this would be of no use, and some releases fall in the attempt.
    @classmethod
    @_left_alone
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None and args and isinstance(args[0], cls):
            answer = rule(*args, **kwargs)
            if answer is not NotImplemented:
                return answer
        if getattr(func, "__name__", "") == "__get__" and func in _PLAIN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return func(*_real_of(args), **{key: _real_of(entry) for key, entry in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(
            f"`chunked-loss` does not know what `{func}` does with the logits\nhint: leave this lever out"
        )


def _promise(
    forward: Callable[..., torch.Tensor], hidden: torch.Tensor, tokens: int, head: nn.Linear, target: Target
) -> torch.Tensor:
    place = hidden.device.type
    kind = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else hidden.dtype
    # Autocast leaves float64 alone.
    kind = hidden.dtype if hidden.dtype == torch.float64 else kind
    state = (torch.is_autocast_enabled(place), kind, torch.is_autocast_cache_enabled())

    def as_then(inputs: torch.Tensor) -> torch.Tensor:
        """The layer as it would have run where it was called."""
        with torch.autocast(
            place, dtype=state[1] if state[0] else None, enabled=state[0], cache_enabled=state[2]
        ):
            return forward(inputs)

    # What else stands around its product of matrices is not known here.
    plain = type(head) is nn.Linear and getattr(forward, "__func__", None) is nn.Linear.forward
    plain = plain and all(type(weight.data) is torch.Tensor for weight in head.parameters())
    plain = plain and (state[0] or head.weight.dtype == kind)
    deferred = _Deferred(as_then, hidden, tokens, head, target, kind, linear=head if plain else None)
    return _make(deferred, (*hidden.shape[:-1], head.out_features), kind)


def _make(deferred: _Deferred, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    made = torch.Tensor._make_wrapper_subclass(
        Logits, shape, dtype=kind, device=deferred.hidden.device, requires_grad=True
    )
    made._memfit_deferred, made._memfit_real = deferred, None
    with torch._C.DisableTorchFunctionSubclass():
        # On the promise itself: to ask it for anything else would be to ask for the logits.
        made.register_hook(_lost)
    return made


def _lost(_gradient: torch.Tensor) -> None:
    """A gradient arrives at the promise itself, and so nowhere."""
    raise RuntimeError(
        "`chunked-loss` cannot follow the logits into an autograd function of somebody's own: their gradient would be lost\n"
        "hint: leave this lever out"
    )


def _deferred(logits: Any) -> _Deferred:
    with torch._C.DisableTorchFunctionSubclass():
        return logits._memfit_deferred  # type: ignore[no-any-return]


def _form(logits: Any) -> tuple[tuple[int, ...], torch.dtype]:
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(logits.shape), logits.dtype


def _real(logits: Any) -> torch.Tensor:
    """The logits themselves, made when they are first asked for."""
    with torch._C.DisableTorchFunctionSubclass():
        known = logits._memfit_real
    if known is None:
        deferred = _deferred(logits)
        known = deferred.forward(deferred.hidden)
        for cast in deferred.casts:
            known = known.to(cast)
        known = known.movedim(-1, 1) if deferred.second else known
        if torch.is_grad_enabled():
            with torch._C.DisableTorchFunctionSubclass():
                logits._memfit_real = known
    return known  # type: ignore[no-any-return]


def _real_of(value: Any) -> Any:
    if isinstance(value, Logits):
        return _real(value)
    if type(value) in (list, tuple):
        return type(value)(_real_of(entry) for entry in value)
    if type(value) is dict:
        return {key: _real_of(entry) for key, entry in value.items()}
    return value


# ---------------------------------------------------------------------------------------- what is put off


def _reshaped(func: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Views that leave the classes alone: the same is done to the hidden states."""

    def rule(logits: Any, *args: Any, **kwargs: Any) -> Any:
        deferred = _deferred(logits)
        shape, kind = _form(logits)
        if deferred.second:
            return NotImplemented
        try:
            after = func(torch.empty(shape, device="meta"), *args, **kwargs).shape
        except (RuntimeError, TypeError, IndexError):
            return NotImplemented
        if len(after) < 2 or after[-1] != shape[-1]:
            return NotImplemented
        moved = deferred.hidden.reshape(*after[:-1], deferred.hidden.shape[-1])
        return _make(replace(deferred, hidden=moved), tuple(after), kind)

    return rule


def _indexed(logits: Any, index: Any) -> Any:
    """A slice along other dimensions than the classes', as the shift by one token is."""
    deferred = _deferred(logits)
    shape, kind = _form(logits)
    parts = index if isinstance(index, tuple) else (index,)
    if deferred.second or not all(isinstance(part, (slice, int)) or part is Ellipsis for part in parts):
        return NotImplemented
    explicit = [part for part in parts if part is not Ellipsis]
    dots = len(explicit) < len(parts)
    # Which of the entries, if any, speaks of the classes.
    if dots and parts[-1] is not Ellipsis:
        last = parts[-1]
    elif not dots and len(explicit) == len(shape):
        last = explicit[-1]
    else:
        last = slice(None)
    if last != slice(None):
        return NotImplemented
    after = torch.empty(shape, device="meta")[index].shape
    if len(after) < 2:
        return NotImplemented
    return _make(replace(deferred, hidden=deferred.hidden[index]), tuple(after), kind)


def _swapped(logits: Any, *args: Any, **kwargs: Any) -> Any:
    """(N, tokens, classes) as (N, classes, tokens), which is how `cross_entropy` takes sequences."""
    deferred = _deferred(logits)
    shape, kind = _form(logits)
    dimensions = tuple(args) or (kwargs.get("dim0"), kwargs.get("dim1"))
    if deferred.second or len(shape) != 3 or any(not isinstance(each, int) for each in dimensions):
        return NotImplemented
    if {each % 3 for each in dimensions} != {1, 2}:
        return NotImplemented
    return _make(replace(deferred, second=True), (shape[0], shape[2], shape[1]), kind)


def _permuted(logits: Any, *order: Any) -> Any:
    wanted = tuple(order[0]) if len(order) == 1 and isinstance(order[0], (tuple, list)) else order
    return _swapped(logits, 1, 2) if wanted == (0, 2, 1) else NotImplemented


def _cast(logits: Any, kind: torch.dtype) -> Any:
    deferred = _deferred(logits)
    shape, before = _form(logits)
    if kind == before:
        return logits
    return _make(replace(deferred, casts=(*deferred.casts, kind)), shape, kind)


def _to(logits: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        place = logits.device
    kinds = [each for each in (*args, kwargs.get("dtype")) if isinstance(each, torch.dtype)]
    places = [each for each in (*args, kwargs.get("device")) if isinstance(each, (torch.device, str))]
    known = {"dtype", "device", "non_blocking", "copy"} >= set(kwargs)
    if not known or any(torch.device(each) != place for each in places) or len(kinds) > 1:
        return NotImplemented
    if len(kinds) + len(places) < len([each for each in args if not isinstance(each, bool)]):
        return NotImplemented
    return _cast(logits, kinds[0]) if kinds else logits


def _cross_entropy(
    logits: Any,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    deferred = _deferred(logits)
    shape, _ = _form(logits)
    flat = deferred.second or len(shape) == 2
    if size_average is not None or reduce is not None or target.is_floating_point() or not flat:
        return NotImplemented
    rows = deferred.hidden.reshape(-1, deferred.hidden.shape[-1])
    labels = target.reshape(-1)
    if not len(rows) or len(rows) != len(labels) or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    # Under autocast, cross entropy is one of the operations that run in fp32.
    wide = torch.is_autocast_enabled(deferred.hidden.device.type)
    casts = deferred.casts
    if casts == (torch.float32,) and deferred.kind in (torch.float16, torch.bfloat16):
        casts, wide = (), True
    compiled = deferred.target.compiled
    entropy = cross_entropy if compiled is None else compiled(cross_entropy)

    def loss(values: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        for cast in casts:
            values = values.to(cast)
        return entropy(
            values,
            wanted,
            wide,
            weight=weight,
            ignore_index=ignore_index,
            reduction="none" if reduction == "none" else "sum",
            label_smoothing=label_smoothing,
        )

    pieces = Pieces(
        deferred.forward,
        loss,
        deferred.tokens,
        [learned for learned in deferred.head.parameters() if learned.requires_grad],
        deferred.linear,
        deferred.kind,
    )
    if reduction == "none":
        return torch.cat(pieces.each(rows, labels)).view(target.shape)
    total = pieces.sum(rows, labels)
    if reduction == "sum":
        return total
    counted = labels != ignore_index
    if weight is None:
        return total / counted.sum()
    return (
        total / weight[labels.where(counted, labels.new_zeros(()))].where(counted, weight.new_zeros(())).sum()
    )


def _detached_form(logits: Any) -> int:
    return len(_form(logits)[0])


_RULES: dict[Any, Callable[..., Any]] = {
    functional.cross_entropy: _cross_entropy,
    torch.Tensor.view: _reshaped(torch.Tensor.view),
    torch.Tensor.reshape: _reshaped(torch.Tensor.reshape),
    torch.reshape: _reshaped(torch.reshape),
    torch.Tensor.flatten: _reshaped(torch.Tensor.flatten),
    torch.flatten: _reshaped(torch.flatten),
    torch.Tensor.contiguous: lambda logits, **_: logits,
    torch.Tensor.__getitem__: _indexed,
    torch.Tensor.transpose: _swapped,
    torch.transpose: _swapped,
    torch.Tensor.permute: _permuted,
    torch.permute: _permuted,
    torch.Tensor.float: lambda logits, **_: _cast(logits, torch.float32),
    torch.Tensor.double: lambda logits, **_: _cast(logits, torch.float64),
    torch.Tensor.to: _to,
    torch.Tensor.size: lambda logits, *dimension: _size(logits, *dimension),
    torch.Tensor.dim: _detached_form,
    torch.Tensor.numel: lambda logits: math.prod(_form(logits)[0]),
    torch.Tensor.is_floating_point: lambda _: True,
    torch.is_floating_point: lambda _: True,
    torch.Tensor.__len__: lambda logits: _form(logits)[0][0],
}

# Properties that a promise has itself.
_PLAIN = {
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_cuda",
        "is_cpu",
        "is_leaf",
        "grad_fn",
        "layout",
        "is_sparse",
        "is_nested",
    )
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
}


def _size(logits: Any, dimension: int | None = None) -> Any:
    shape = torch.Size(_form(logits)[0])
    return shape if dimension is None else shape[dimension]
