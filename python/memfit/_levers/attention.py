"""Deferred attention scores, and the effect of operations on them.

Operations of attention return another stand-in, or update this one; the product with the values is attention.
Any other operation computes the real scores once, and the stand-in represents them from then on.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from . import einsum
from .later import Moment, gradients_lost, left_alone
from .saying import warn
from .scores import Scores, Step

# Scores of at most this value are masked: softmax gives them a weight of zero.
_MAX_MASKED_SCORE = -1e8
_LEVER = "sdpa"
_GRADIENT_LOST = (
    "`sdpa` cannot follow attention scores into a custom autograd function: their gradient would be lost\n"
    "hint: leave this lever out"
)
_DROPOUT_DIFFERS = (
    "`sdpa` fused the attention weights and their dropout with the product, and the script reads the weights "
    "again: their dropout would differ\n"
    "hint: leave this lever out"
)


class Deferred(torch.Tensor):
    """Stands in for scores that have not been computed."""

    _memfit: Scores
    # The real scores, once something needed them; from then on they replace the stand-in.
    _memfit_real: torch.Tensor | None
    # Set if a result was computed without the real scores.
    _memfit_used: bool
    # The scores of which this is a transposed view, as of convolutional networks, which multiply values of
    # (batch, features, keys) with transposed weights.
    _memfit_base: Deferred | None

    @classmethod
    @left_alone
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return answer(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        text = f"`sdpa` does not support `{func}` on attention scores\nhint: leave this lever out"
        # A scripted function replaces the error message with its own.
        warn(text)
        raise RuntimeError(text)


def deferred(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, base: Any = None) -> Any:
    """Create a stand-in for scores, or for a transposed view of another stand-in."""
    made: Any = torch.Tensor._make_wrapper_subclass(
        Deferred, shape, dtype=kind, device=scores.query.device, requires_grad=True
    )
    made._memfit, made._memfit_real, made._memfit_used = scores, None, False
    made._memfit_base = base
    with torch._C.DisableTorchFunctionSubclass():
        made.register_hook(_lost)
    return made


def _lost(_gradient: torch.Tensor) -> None:
    raise RuntimeError(_GRADIENT_LOST)


def attended(stand_in: Any, value: torch.Tensor) -> torch.Tensor:
    """Multiply the attention weights with values."""
    scores: Scores = stand_in._memfit
    if scores.dropout and stand_in._memfit_used:
        raise RuntimeError(_DROPOUT_DIFFERS)
    stand_in._memfit_used = True
    return scores.attend(value)


def real(stand_in: Any) -> torch.Tensor:
    """Return the real scores, computed once."""
    base = stand_in._memfit_base
    if stand_in._memfit_real is None and base is not None:
        stand_in._memfit_real = real(base).transpose(-2, -1)
    if stand_in._memfit_real is None:
        if stand_in._memfit.dropout and stand_in._memfit_used:
            raise RuntimeError(_DROPOUT_DIFFERS)
        stand_in._memfit_real = stand_in._memfit.real()
    made: torch.Tensor = stand_in._memfit_real
    return made


def observed(stand_in: Any) -> None:
    """Refuse to report the gradient of scores that were already used."""
    if stand_in._memfit_used:
        raise gradients_lost(_LEVER)


def outside(value: Any) -> Any:
    """Replace stand-ins with real scores in values that leave the model."""
    if isinstance(value, Deferred):
        return real(value)
    if isinstance(value, tuple):
        entries = [outside(entry) for entry in value]
        if all(one is other for one, other in zip(entries, value, strict=True)):
            return value
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    # Lists and dictionaries are filled in place, because the caller may hold a reference.
    if isinstance(value, list):
        for place, entry in enumerate(value):
            value[place] = outside(entry)
    if isinstance(value, dict):
        for key, entry in list(value.items()):
            changed = outside(entry)
            if changed is not entry:
                value[key] = changed
    return value


class Operation:
    """An operation called by the script."""

    def __init__(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.name, self.args, self.kwargs = func, name, args, kwargs

    def step(self, place: torch.device, *, begins: bool = False) -> Step:
        """Return the operation in a form that can be run later."""
        rest = self.args if begins else self.args[1:]
        inputs = [
            each
            for entry in (*rest, *self.kwargs.values())
            for each in (entry if isinstance(entry, (list, tuple)) else (entry,))
            if isinstance(each, torch.Tensor)
        ]
        return Step(self.func, rest, self.kwargs, Moment(_LEVER, place, inputs))


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function to arguments that may include deferred scores."""
    name = getattr(func, "__name__", "")
    first = args[0] if args else None
    if _is_waiting(first):
        if name in _ANSWERED or (name == "__get__" and func in _PROPERTIES):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if torch.is_grad_enabled():
            found = _apply_operation(first, Operation(func, name, args, kwargs))
            if found is not None:
                return found
    found = None
    if name == "einsum":
        found = _attend_einsum(args, kwargs)
    elif name in PRODUCTS and len(args) == 2 and not kwargs:
        found = _attend_transposed(*args)
    if found is not None:
        return found
    if any(holds(each) for each in (*args, *kwargs.values())):
        if name in _OBSERVERS:
            for each in _held((args, kwargs)):
                observed(each)
        args = tuple(outside(each) for each in args)
        kwargs = {key: outside(each) for key, each in kwargs.items()}
    return func(*args, **kwargs)


def _is_waiting(value: Any) -> bool:
    """Return `True` for a stand-in for scores that are not computed yet."""
    if not isinstance(value, Deferred) or value._memfit_real is not None:
        return False
    return value._memfit_base is None or value._memfit_base._memfit_real is None


def holds(value: Any) -> bool:
    return next(_held(value), None) is not None


def _held(value: Any) -> Iterator[Any]:
    """Yield the stand-ins among a function's arguments."""
    if isinstance(value, Deferred):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _held(entry)
    elif isinstance(value, dict):
        yield from _held(list(value.values()))


def operands(args: tuple[Any, ...]) -> tuple[Any, ...]:
    rest = args[1:]
    return tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else tuple(rest)


def _attend_einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Multiply weights with values for an `einsum` equation."""
    if kwargs or not isinstance(args[0], str) or not torch.is_grad_enabled():
        return None
    terms = operands(args)
    waiting = [index for index, each in enumerate(terms) if _is_waiting(each) and each._memfit_base is None]
    if len(waiting) != 1 or len(terms) != 2 or isinstance(terms[1 - waiting[0]], Deferred):
        return None
    value = einsum.attended(args[0], waiting[0], terms)
    if value is None:
        return None
    made = _attend(terms[waiting[0]], value[0])
    return None if made is None else made.permute(value[1])


def _attend_transposed(value: Any, stand_in: Any) -> Any:
    """Multiply values of (batch…, features, keys) with transposed weights."""
    if not _is_waiting(stand_in) or stand_in._memfit_base is None or not torch.is_grad_enabled():
        return None
    if type(value) is not torch.Tensor or value.dim() < 2:
        return None
    made = _attend(stand_in._memfit_base, value.transpose(-2, -1))
    if made is None:
        return None
    stand_in._memfit_used = True
    return made.transpose(-2, -1)


def _attend(stand_in: Any, value: torch.Tensor) -> Any:
    """Multiply weights with values if the attention kernels support it, else return `None`."""
    scores: Scores = stand_in._memfit
    query, (shape, kind) = scores.query, _shape_and_type(stand_in)
    if not scores.softmax or type(value) not in (torch.Tensor, nn.Parameter) or value.device != query.device:
        return None
    if value.shape[:-1] != (*shape[:-2], shape[-1]) or value.dtype != query.dtype:
        return None
    if not scores.steps[0].moment.same_types():
        return None
    after = kind
    if torch.is_autocast_enabled(query.device.type) and kind != torch.float64:
        after = torch.get_autocast_dtype(query.device.type)
    elif kind != value.dtype:
        return None
    made = attended(stand_in, value)
    return made if made.dtype == after else made.to(after)


def _shape_and_type(stand_in: Any) -> tuple[tuple[int, ...], torch.dtype]:
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(stand_in.shape), stand_in.dtype


def _apply_operation(stand_in: Any, operation: Operation) -> Any:
    """Apply an operation to deferred scores; return `None` if it is not part of attention."""
    name, rest = operation.name, operation.args[1:]
    scores: Scores = stand_in._memfit
    shape, kind = _shape_and_type(stand_in)
    if _swaps_rows(operation, len(shape)):
        turned = (*shape[:-2], shape[-1], shape[-2])
        base = stand_in._memfit_base
        return deferred(scores, turned, kind, stand_in) if base is None else base
    if stand_in._memfit_base is not None:
        return None
    if name in PRODUCTS:
        plain = len(rest) == 1 and not operation.kwargs and not isinstance(rest[0], Deferred)
        return _attend(stand_in, rest[0]) if plain else None
    found = _RULES[name](scores, shape, kind, operation) if name in _RULES else None
    if found is None:
        return None
    known, after = found
    if not known and after == kind:
        return stand_in
    changed = scores.after(operation.step(scores.query.device), **known)
    if name in _IN_PLACE or (name == "dropout" and operation.kwargs.get("inplace")):
        if after != kind:
            return None
        stand_in._memfit = changed
        return stand_in
    stand_in._memfit_used = True
    return deferred(changed, shape, after)


def _swaps_rows(operation: Operation, dimensions: int) -> bool:
    """Return `True` if an operation exchanges the last two dimensions, and nothing else."""
    if operation.name == "__get__":
        return operation.func == torch.Tensor.mT.__get__
    rest = operation.args[1:]
    order = tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    if operation.kwargs or not all(type(each) is int for each in order):
        return False
    order = tuple(each % dimensions for each in order)
    last, rows = dimensions - 1, dimensions - 2
    if operation.name in ("transpose", "swapaxes", "swapdims"):
        return sorted(order) == [rows, last]
    return operation.name == "permute" and order == (*range(rows), last, rows)


# The new properties of the scores after an operation, and their data type; empty with the same type if the
# tensor is unchanged.
_Known = tuple[dict[str, Any], torch.dtype] | None


def _dropped(scores: Scores, _shape: tuple[int, ...], kind: torch.dtype, operation: Operation) -> _Known:
    if (
        operation.func is not functional.dropout
        or not scores.softmax
        or scores.dropout
        or len(operation.args) > 3
    ):
        return None
    given = inspect.signature(functional.dropout).bind(*operation.args, **operation.kwargs)
    given.apply_defaults()
    rate = given.arguments["p"]
    if not isinstance(rate, (int, float)) or not 0.0 <= rate < 1.0:
        return None
    return ({"dropout": float(rate)} if given.arguments["training"] and rate else {}), kind


def _cast(scores: Scores, _shape: tuple[int, ...], kind: torch.dtype, operation: Operation) -> _Known:
    """Casts around the softmax change nothing, because the kernels compute it in fp32."""
    other = operation.args[1] if len(operation.args) > 1 else None
    wanted = torch.float32 if operation.name == "float" else getattr(other, "dtype", other)
    if operation.kwargs or len(operation.args) > 2 or not isinstance(wanted, torch.dtype):
        return None
    if getattr(other, "device", scores.query.device) != scores.query.device:
        return None
    known = (torch.float32, scores.query.dtype, _computed(scores.query))
    if wanted == kind:
        return {}, kind
    return ({"scale": scores.scale}, wanted) if wanted in known and kind != torch.float64 else None


def _computed(query: torch.Tensor) -> torch.dtype:
    """Return the data type of matrix products here."""
    place = query.device.type
    return torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else query.dtype


def _softmax(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, operation: Operation) -> _Known:
    rest, kwargs = operation.args[1:], operation.kwargs
    dimension = rest[0] if rest else kwargs.get("dim")
    extra = {key for key, entry in kwargs.items() if entry is not None} - {"dim", "_stacklevel", "dtype"}
    if scores.softmax or extra or len(rest) > 1 or dimension not in (-1, len(shape) - 1):
        return None
    wanted = kwargs.get("dtype")
    if wanted not in (None, torch.float32, kind) or (wanted is not None and kind == torch.float64 != wanted):
        return None
    # Autocast may run it in fp32; an empty tensor shows which type it gives.
    with torch.no_grad(), torch._C.DisableTorchFunction():
        nothing = torch.empty(0, 1, dtype=kind, device=scores.query.device)
        after = functional.softmax(nothing, -1, dtype=wanted).dtype
    return {"softmax": True}, after


def _scaled(scores: Scores, _shape: tuple[int, ...], kind: torch.dtype, operation: Operation) -> _Known:
    if scores.softmax or scores.keep is not None or scores.bias is not None:
        return None
    other = operation.args[1] if len(operation.args) == 2 and not operation.kwargs else None
    if isinstance(other, bool) or not isinstance(other, (int, float)) or not 0.0 < other < math.inf:
        return None
    factor = float(other) if "mul" in operation.name else 1.0 / float(other)
    return {"scale": scores.scale * factor}, kind


def _masked(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, operation: Operation) -> _Known:
    if scores.softmax or len(operation.args) != 3 or operation.kwargs:
        return None
    mask, fill = operation.args[1:]
    certain = isinstance(fill, (int, float)) and fill <= max(_MAX_MASKED_SCORE, torch.finfo(kind).min)
    if not certain or not _fits(mask, scores, shape) or mask.dtype != torch.bool:
        return None
    fill = float(fill)
    # Rows that are fully masked have a known result for one fill value only.
    if (scores.keep is not None and scores.fill != fill) or (scores.bias is not None and fill != -math.inf):
        return None
    keep = ~mask
    if scores.bias is not None and _empty_rows(scores.bias.masked_fill(mask, fill)):
        return None
    return {"keep": keep if scores.keep is None else scores.keep & keep, "fill": fill}, kind


def _biased(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, operation: Operation) -> _Known:
    other: Any = operation.args[1] if len(operation.args) == 2 and not operation.kwargs else None
    if scores.softmax or scores.keep is not None or not _fits(other, scores, shape):
        return None
    if other.requires_grad or not other.is_floating_point():
        return None
    after = (
        torch.promote_types(kind, other.dtype) if other.dim() and operation.name not in _IN_PLACE else kind
    )
    if after not in (kind, torch.float32):
        return None
    bias = other if scores.bias is None else scores.bias + other
    return None if _empty_rows(bias) else ({"bias": bias}, after)


def _empty_rows(bias: torch.Tensor) -> bool:
    """Return `True` if every score of some row is so far below zero that the kernels' backward pass cannot
    distinguish them.
    """
    if bias.is_cuda and torch.cuda.is_current_stream_capturing():
        return True
    base = bias if bias._base is None else bias._base
    known = _empty_rows_of.setdefault(base, {})
    place = (bias.storage_offset(), bias.shape, bias.stride())
    version, empty = known.get(place, (-1, False))
    if version != bias._version:
        # Synchronises with the device, once per mask.
        empty = bias.numel() > 0 and bool((bias.detach().amax(-1) < _MIN_DISTINCT_SCORE).any())
        known[place] = (bias._version, empty)
    return empty


def _fits(other: Any, scores: Scores, shape: tuple[int, ...]) -> bool:
    """Return `True` if a tensor broadcasts to the scores' shape."""
    if type(other) is not torch.Tensor or other.device != scores.query.device or other.dim() > len(shape):
        return False
    pairs = zip(reversed(other.shape), reversed(shape), strict=False)
    return all(one in (1, whole) for one, whole in pairs)


# For masks that are added, by tensor, memory layout and version: `True` if some row is fully masked.
_empty_rows_of: Any = WeakTensorKeyDictionary()
# Limit below zero to which fp32 still distinguishes scores.
_MIN_DISTINCT_SCORE = -1e3
PRODUCTS = ("matmul", "__matmul__", "bmm")
_RULES: dict[str, Callable[[Scores, tuple[int, ...], torch.dtype, Operation], _Known]] = {
    "dropout": _dropped,
    "softmax": _softmax,
    **dict.fromkeys(("to", "type_as", "float"), _cast),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply", "multiply_"), _scaled),
    **dict.fromkeys(("div", "__truediv__", "true_divide"), _scaled),
    **dict.fromkeys(("div_", "__itruediv__", "__idiv__", "true_divide_"), _scaled),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _masked),
    **dict.fromkeys(("add", "__add__", "__radd__", "add_", "__iadd__"), _biased),
}
_IN_PLACE = (
    *("mul_", "__imul__", "multiply_", "div_", "__itruediv__", "__idiv__", "true_divide_"),
    *("masked_fill_", "add_", "__iadd__"),
)
# Functions that the stand-in answers itself.
_ANSWERED = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "__len__")
_PROPERTIES = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "is_cpu", "layout")
}
# Functions that ask for the gradient of a tensor.
_OBSERVERS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook", "grad")
