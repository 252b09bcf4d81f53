"""`sdpa`: attention without the matrix of all pairs.

Models of Hugging Face's are told. In others, attention that is written out is recognised by its operations: a product of
queries and keys, scaled, masked, through a softmax over the keys, perhaps dropped out, times the values. Such a product is put
off until it is known what becomes of it; where it becomes anything else, it is computed as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from . import einsum
from .target import CannotApply, Target, Undo
from .wrapping import together, wrap

# Scores that are at most this are masked: no softmax lets anything of them through.
_MASKED = -1e8


def apply(target: Target, _value: Any, name: str) -> Undo:
    """Use it in the model's forward; its value is true."""
    return together([_one(model, name) for model in target.models()])


def _one(model: nn.Module, name: str) -> Undo:
    told = _tell(model)
    if told is not None:
        return told
    if not hasattr(functional, "scaled_dot_product_attention"):
        raise CannotApply(name, "this release of PyTorch has no `scaled_dot_product_attention`")

    def around(_model: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        with Attention():
            answer = forward(*args, **kwargs)
        return _outside(answer)

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


@dataclass(frozen=True)
class _Scores:
    """What is known of scores that were put off."""

    query: torch.Tensor
    key: torch.Tensor
    scale: float = 1.0
    # Where true, a pair counts; added to the scores.
    keep: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    softmax: bool = False
    dropout: float = 0.0

    def real(self) -> torch.Tensor:
        """The scores, or what became of them, as they were written."""
        scores = self.query @ self.key.transpose(-2, -1)
        scores = scores * self.scale if self.scale != 1.0 else scores
        scores = scores + self.bias if self.bias is not None else scores
        scores = scores.masked_fill(~self.keep, float("-inf")) if self.keep is not None else scores
        return functional.softmax(scores, -1) if self.softmax else scores

    def attend(self, value: torch.Tensor) -> torch.Tensor:
        mask = self.keep
        if self.bias is not None:
            mask = self.bias if mask is None else self.bias.masked_fill(~mask, float("-inf"))
            mask = mask.to(self.query.dtype)
        if mask is not None:
            mask = (
                mask.expand(*([1] * (self.query.dim() - mask.dim())), *mask.shape) if mask.dim() < 2 else mask
            )
        return functional.scaled_dot_product_attention(
            self.query, self.key, value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )


class Deferred(torch.Tensor):
    """Stands for scores that are not there."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _memfit: _Scores

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(
            f"`sdpa` does not know what `{func}` does with scores of attention\nhint: leave this lever out"
        )


def _deferred(scores: _Scores, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    made = torch.Tensor._make_wrapper_subclass(
        Deferred, shape, dtype=kind, device=scores.query.device, requires_grad=True
    )
    made._memfit = scores
    made.register_hook(_lost)
    return made


def _lost(_gradient: torch.Tensor) -> None:
    raise RuntimeError(
        "`sdpa` cannot follow scores of attention into an autograd function of somebody's own: their gradient would be lost\n"
        "hint: leave this lever out"
    )


def _outside(value: Any) -> Any:
    """No stand-in leaves the model."""
    if isinstance(value, Deferred):
        return value._memfit.real()
    if type(value) in (list, tuple):
        return type(value)(_outside(entry) for entry in value)
    if isinstance(value, dict):
        for key, entry in list(value.items()):
            changed = _outside(entry)
            if changed is not entry:
                value[key] = changed
    return value


class Attention(TorchFunctionMode):
    """Recognises attention that is written out."""

    # What is recognised in a forward has to be in the same forward when it is run again for a backward.
    in_second_pass = True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "einsum":
            answer = self._einsum(args)
            if answer is not None:
                return answer
        elif isinstance(first, Deferred):
            if name == "__get__" or name in ("size", "dim", "is_floating_point", "numel"):
                return func(*args, **kwargs)
            answer = self._on(first, name, args[1:], kwargs)
            if answer is not None:
                return answer
        elif name in _PRODUCTS and len(args) == 2 and not kwargs and not torch.is_inference_mode_enabled():
            # Keys lie transposed in memory: their rows do not lie one after the other.
            key = args[1]
            turned = isinstance(key, torch.Tensor) and key.dim() > 1 and key.stride(-2) == 1 != key.stride(-1)
            answer = self._begin(args[0], key.transpose(-2, -1)) if turned else None
            if answer is not None:
                return answer
        if any(isinstance(each, Deferred) for each in (*args, *kwargs.values())) or any(
            isinstance(each, (list, tuple)) and any(isinstance(entry, Deferred) for entry in each)
            for each in args
        ):
            args = tuple(_outside(each) for each in args)
            kwargs = {key: _outside(each) for key, each in kwargs.items()}
        return func(*args, **kwargs)

    def _einsum(self, args: tuple[Any, ...]) -> Any:
        """A product that is written with letters: of queries and keys, or of the weights and the values."""
        equation, *rest = args
        if not isinstance(equation, str) or torch.is_inference_mode_enabled():
            return None
        operands = tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else tuple(rest)
        deferred = [index for index, each in enumerate(operands) if isinstance(each, Deferred)]
        if not deferred:
            found = einsum.scores(equation, operands)
            return None if found is None else self._begin(*found)
        if len(deferred) > 1 or len(operands) != 2:
            return None
        weights = operands[deferred[0]]
        value = einsum.attended(equation, deferred[0], operands)
        if value is None:
            return None
        answer = self._on(weights, "matmul", (value[0],), {})
        return None if answer is None else answer.permute(value[1])

    @staticmethod
    def _begin(query: torch.Tensor, key: torch.Tensor) -> Any:
        """A product of queries and keys, both as (batch…, rows, features)."""
        if not isinstance(query, torch.Tensor) or query.dim() not in (3, 4):
            return None
        if key.dim() != query.dim() or query.dtype != key.dtype or not query.is_floating_point():
            return None
        if query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1]:
            return None
        # As many pairs as are worth it.
        if query.shape[-2] < 2 or not (query.requires_grad or key.requires_grad):
            return None
        shape = (*query.shape[:-1], key.shape[-2])
        kind = query.dtype
        if torch.is_autocast_enabled(query.device.type) and kind != torch.float64:
            kind = torch.get_autocast_dtype(query.device.type)
        return _deferred(_Scores(query, key), shape, kind)

    @staticmethod
    def _on(stand_in: Any, name: str, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operation makes of scores that were put off; None where it is not one of attention's."""
        scores: _Scores = stand_in._memfit
        shape, kind = tuple(stand_in.shape), stand_in.dtype
        other = rest[0] if rest else None
        if name in _PRODUCTS and scores.softmax and len(rest) == 1 and isinstance(other, torch.Tensor):
            fits = (
                other.dim() == len(shape)
                and other.shape[-2] == shape[-1]
                and other.dtype == scores.query.dtype
            )
            return scores.attend(other) if fits else None
        if name in ("dropout",) and scores.softmax and scores.dropout == 0.0:
            rate = float(rest[0] if rest else kwargs.get("p", 0.5))
            training = rest[1] if len(rest) > 1 else kwargs.get("training", True)
            if kwargs.get("inplace") or len(rest) > 2:
                return None
            return _deferred(replace(scores, dropout=rate if training else 0.0), shape, kind)
        if name in ("to", "type_as", "float"):
            # The kernels' softmax is in fp32 whatever goes in, so a cast around it changes nothing.
            wanted = torch.float32 if name == "float" else getattr(other, "dtype", other)
            plain = (
                isinstance(wanted, torch.dtype) and wanted.is_floating_point and not kwargs and len(rest) <= 1
            )
            return _deferred(scores, shape, wanted) if plain else None
        if scores.softmax:
            return None
        if name in ("softmax",):
            dimension = rest[0] if rest else kwargs.get("dim")
            extra = {key for key, entry in kwargs.items() if entry is not None} - {"dim", "_stacklevel"}
            after = kwargs.get("dtype") or kind
            if extra - {"dtype"} or len(rest) > 1 or dimension not in (-1, len(shape) - 1):
                return None
            return _deferred(replace(scores, softmax=True), shape, after)
        masked = scores.keep is not None or scores.bias is not None
        if name in ("mul", "__mul__", "__rmul__", "div", "__truediv__", "true_divide") and not masked:
            if isinstance(other, bool) or not isinstance(other, (int, float)) or kwargs:
                return None
            factor = float(other) if "mul" in name else 1.0 / float(other)
            return _deferred(replace(scores, scale=scores.scale * factor), shape, kind)
        if name in ("masked_fill", "masked_fill_") and len(rest) == 2 and not kwargs:
            mask, fill = rest
            certain = isinstance(fill, (int, float)) and fill <= max(_MASKED, torch.finfo(kind).min)
            if (
                not certain
                or not isinstance(mask, torch.Tensor)
                or mask.dtype != torch.bool
                or name.endswith("_")
            ):
                return None
            keep = ~mask
            return _deferred(
                replace(scores, keep=keep if scores.keep is None else scores.keep & keep), shape, kind
            )
        if name in ("add", "__add__", "__radd__") and isinstance(other, torch.Tensor) and not kwargs:
            if other.requires_grad or not other.is_floating_point() or scores.keep is not None:
                return None
            bias = other if scores.bias is None else scores.bias + other
            return _deferred(replace(scores, bias=bias), shape, kind)
        return None


_PRODUCTS = ("matmul", "__matmul__", "bmm")
