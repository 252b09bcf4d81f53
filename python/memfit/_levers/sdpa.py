"""`sdpa`: attention without the matrix of all pairs.

Models of Hugging Face's are told. In others, attention that is written out is recognised by its operations: a
product of queries and keys, scaled, masked, through a softmax over the keys, perhaps dropped out, times the
values. Such a product is put off until it is known what becomes of it; where it becomes anything else, or is
changed in any other way, it is computed as it was written, once, and is that from then on.

A row of which every pair is masked with minus infinity has no softmax: it is NaN where it is written out, and
zero here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from . import einsum
from .attention import PRODUCTS, Deed, answer, deferred, holds, operands, outside
from .later import left_alone, may_wait
from .registry import Stage, lever
from .scores import Scores
from .target import CannotApply, Target, Undo
from .wrapping import all_or_none, wrap


@lever("sdpa", Stage.MODEL, 80)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Use it in the model's forward; its value is true."""
    return all_or_none(_one(model, name) for model in target.models())


def _one(model: nn.Module, name: str) -> Undo:
    told = _tell(model)
    if told is not None:
        return told
    if not hasattr(functional, "scaled_dot_product_attention"):
        raise CannotApply(name, "this release of PyTorch has no `scaled_dot_product_attention`")

    def around(_model: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return forward(*args, **kwargs)
        with Attention():
            answer = forward(*args, **kwargs)
        return outside(answer)

    return wrap(model, around)


def _tell(model: nn.Module) -> Undo | None:
    """Hugging Face's models know the ways in which they can compute attention."""
    config = getattr(model, "config", None)
    now = getattr(config, "_attn_implementation", None)
    tell = getattr(model, "set_attn_implementation", None)
    if not callable(tell) or now is None:
        return None
    if now != "eager":
        return lambda: None
    try:
        tell("sdpa")
    except (ValueError, ImportError):
        # Its attention has something that the kernels have not.
        return None
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return None
    return lambda: tell(now)


class Attention(TorchFunctionMode):
    """Recognises attention that is written out."""

    # What is recognised in a forward has to be in the same forward when it is run again for a backward.
    in_second_pass = True
    # What the bounds of such a forward do to what is put off.
    outside = staticmethod(outside)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # What is compiled within the model stays so: a mode that no compiler may look into would switch it
        # off.
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return self._recognised(func, args, kwargs or {})

    @left_alone
    def _recognised(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        begun = None
        if name == "einsum":
            begun = _lettered(func, args, kwargs)
        elif name in PRODUCTS and len(args) == 2 and not kwargs:
            key = args[1]
            # Keys lie transposed in memory: their rows do not lie one after the other.
            turned = type(key) is torch.Tensor and key.dim() > 1 and key.stride(-2) == 1 != key.stride(-1)
            begun = _begin(args[0], key.transpose(-2, -1), Deed(func, name, args, kwargs)) if turned else None
        return begun if begun is not None else answer(func, args, kwargs)


def _lettered(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product of queries and keys that is written with letters."""
    if kwargs or not isinstance(args[0], str) or holds(args):
        return None
    found = einsum.scores(args[0], operands(args))
    return None if found is None else _begin(*found, Deed(func, "einsum", args, kwargs))


def _begin(query: Any, key: Any, deed: Deed) -> Any:
    """A product of queries and keys, both as (batch…, rows, features)."""
    if not all(type(each) in (torch.Tensor, nn.Parameter) for each in (query, key)):
        return None
    if query.dim() not in (3, 4) or key.dim() != query.dim() or query.device != key.device:
        return None
    if query.dtype != key.dtype or not query.is_floating_point():
        return None
    if query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1]:
        return None
    # As many pairs as are worth it.
    if query.shape[-2] < 2 or not (query.requires_grad or key.requires_grad) or not may_wait():
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    kind = query.dtype
    if torch.is_autocast_enabled(query.device.type) and kind != torch.float64:
        kind = torch.get_autocast_dtype(query.device.type)
    return deferred(Scores(query, key, (deed.step(query.device, begins=True),)), shape, kind)
