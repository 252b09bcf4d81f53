"""`sdpa`: memory-efficient attention; the attention matrix is never materialised.

Hugging Face models have a setting for it. In other models, attention written out by hand is recognised by its
operations: a product of queries and keys, scaled, masked, softmax over the keys, optionally dropout, times
the values; or, in convolutional networks, the values times the transposed weights. The first product is
deferred until its use is known; any other use or change computes it once as written, and keeps that result.

Softmax of a row that is fully masked with minus infinity is NaN when written out, and zero here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from . import einsum
from .attention import PRODUCTS, Operation, answer, deferred, holds, operands, outside
from .later import left_alone, may_wait
from .registry import Stage, lever
from .scores import Scores
from .target import CannotApply, Target, Undo
from .wrapping import all_or_none, wrap

_NOTHING_FOUND = (
    "no attention was found that it can replace: a product of queries and keys, a softmax over the keys, and a "
    "product with the values, computed in order by `@`, `matmul`, `bmm` or `einsum`, outside of compiled code"
)


@lever("sdpa", Stage.MODEL, 80)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Replace attention in the models' forward passes; `value` is `True`."""
    return all_or_none(_one(model, target, name) for model in target.models())


def _one(model: nn.Module, target: Target, name: str) -> Undo:
    undo = _set_implementation(model)
    if undo is not None:
        return undo
    if not hasattr(functional, "scaled_dot_product_attention"):
        raise CannotApply(name, "this PyTorch version has no `scaled_dot_product_attention`")

    target.idle[name, ""] = _NOTHING_FOUND

    def around(_model: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return forward(*args, **kwargs)
        with Attention(lambda: target.takes_effect(name)):
            answer = forward(*args, **kwargs)
        return outside(answer)

    return wrap(model, around)


def _set_implementation(model: nn.Module) -> Undo | None:
    """Set the attention implementation of a Hugging Face model."""
    config = getattr(model, "config", None)
    now = getattr(config, "_attn_implementation", None)
    set_implementation = getattr(model, "set_attn_implementation", None)
    if not callable(set_implementation) or now is None:
        return None
    if now != "eager":
        return lambda: None
    try:
        set_implementation("sdpa")
    except (ValueError, ImportError):
        # The model has no variant with these kernels.
        return None
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return None
    return lambda: set_implementation(now)


class Attention(TorchFunctionMode):
    """Recognises attention that is written out."""

    # The recognition has to be active in a checkpoint's second pass as well.
    in_second_pass = True
    # Computes deferred scores at the borders of such a pass.
    outside = staticmethod(outside)

    def __init__(self, found: Callable[[], None]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Modules compiled within the model stay compiled: a function mode that disables the compiler would
        # turn them off.
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return self._recognised(func, args, kwargs or {})

    @left_alone
    def _recognised(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        begun = None
        if name == "einsum":
            begun = _begin_einsum(func, args, kwargs, self._found)
        elif name in PRODUCTS and len(args) == 2 and not kwargs and _is_of_scores(*args):
            key = args[1].transpose(-2, -1)
            begun = _begin(args[0], key, Operation(func, name, args, kwargs), self._found)
        return begun if begun is not None else answer(func, args, kwargs)


def _is_of_scores(query: Any, key: Any) -> bool:
    """Return `True` if this may be a product of queries and keys: the keys are a transposed view or, in
    convolutional networks, the queries.
    """
    plain = all(type(each) is torch.Tensor and each.dim() > 2 for each in (query, key))
    return plain and (_is_transposed(query) or _is_transposed(key))


def _is_transposed(tensor: torch.Tensor) -> bool:
    """Return `True` if a tensor's rows are not contiguous in memory, but its columns are."""
    return tensor.stride(-2) == 1 != tensor.stride(-1)


def _begin_einsum(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found_one: Callable[[], None]
) -> Any:
    """Recognise an `einsum` product of queries and keys."""
    if kwargs or not isinstance(args[0], str) or holds(args):
        return None
    found = einsum.scores(args[0], operands(args))
    return None if found is None else _begin(*found, Operation(func, "einsum", args, kwargs), found_one)


def _begin(query: Any, key: Any, operation: Operation, found: Callable[[], None]) -> Any:
    """Defer a product of queries and keys, both as (batch…, rows, features)."""
    if not all(type(each) in (torch.Tensor, nn.Parameter) for each in (query, key)):
        return None
    if query.dim() not in (3, 4) or key.dim() != query.dim() or query.device != key.device:
        return None
    if query.dtype != key.dtype or not query.is_floating_point():
        return None
    if query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1]:
        return None
    # With a single query, the attention matrix is too small to matter.
    if query.shape[-2] < 2 or not (query.requires_grad or key.requires_grad) or not may_wait():
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    kind = query.dtype
    if torch.is_autocast_enabled(query.device.type) and kind != torch.float64:
        kind = torch.get_autocast_dtype(query.device.type)
    return deferred(Scores(query, key, (operation.step(query.device, begins=True),), found), shape, kind)
