"""What stands for scores of attention that were put off, and what operations make of it.

Those of attention give another stand-in, or change this one; the product with the values is attention.
Anything else is done to the real scores, which are made once, and are what the stand-in means from then on.
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

# Scores that are at most this are masked: no softmax lets anything of them through.
_MASKED = -1e8
_LEVER = "sdpa"
_LOST = (
    "`sdpa` cannot follow scores of attention into an autograd function of somebody's own: their gradient would be lost\n"
    "hint: leave this lever out"
)
_DROPPED = (
    "`sdpa` used attention's weights in a product together with their dropout, and they are asked for once more: they would be"
    " dropped out differently\nhint: leave this lever out"
)


class Deferred(torch.Tensor):
    """Stands for scores that are not there."""

    _memfit: Scores
    # What they are, once something asked for it: from then on these are the scores.
    _memfit_real: torch.Tensor | None
    # Whether something was made of them that does not come from the real ones.
    _memfit_used: bool

    @classmethod
    @left_alone
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return answer(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        text = f"`sdpa` does not know what `{func}` does with scores of attention\nhint: leave this lever out"
        # A scripted function raises an error of its own, without these words.
        warn(text)
        raise RuntimeError(text)


def deferred(scores: Scores, shape: tuple[int, ...], kind: torch.dtype) -> Any:
    """A stand-in for scores."""
    made: Any = torch.Tensor._make_wrapper_subclass(
        Deferred, shape, dtype=kind, device=scores.query.device, requires_grad=True
    )
    made._memfit, made._memfit_real, made._memfit_used = scores, None, False
    with torch._C.DisableTorchFunctionSubclass():
        made.register_hook(_lost)
    return made


def _lost(_gradient: torch.Tensor) -> None:
    raise RuntimeError(_LOST)


def attended(stand_in: Any, value: torch.Tensor) -> torch.Tensor:
    """The product of weights with values."""
    scores: Scores = stand_in._memfit
    if scores.dropout and stand_in._memfit_used:
        raise RuntimeError(_DROPPED)
    stand_in._memfit_used = True
    return scores.attend(value)


def real(stand_in: Any) -> torch.Tensor:
    """The scores themselves: the same for all who ask."""
    if stand_in._memfit_real is None:
        if stand_in._memfit.dropout and stand_in._memfit_used:
            raise RuntimeError(_DROPPED)
        stand_in._memfit_real = stand_in._memfit.real()
    made: torch.Tensor = stand_in._memfit_real
    return made


def observed(stand_in: Any) -> None:
    """Somebody wants to know the gradient of these scores."""
    if stand_in._memfit_used:
        raise gradients_lost(_LEVER)


def outside(value: Any) -> Any:
    """No stand-in leaves the model."""
    if isinstance(value, Deferred):
        return real(value)
    if isinstance(value, tuple):
        entries = [outside(entry) for entry in value]
        if all(one is other for one, other in zip(entries, value, strict=True)):
            return value
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    # Who fills a list or a dictionary has to have that very one filled.
    if isinstance(value, list):
        for place, entry in enumerate(value):
            value[place] = outside(entry)
    if isinstance(value, dict):
        for key, entry in list(value.items()):
            changed = outside(entry)
            if changed is not entry:
                value[key] = changed
    return value


class Deed:
    """An operation that the script asks for."""

    def __init__(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.name, self.args, self.kwargs = func, name, args, kwargs

    def step(self, place: torch.device, *, begins: bool = False) -> Step:
        """How it is carried out later."""
        rest = self.args if begins else self.args[1:]
        inputs = [
            each
            for entry in (*rest, *self.kwargs.values())
            for each in (entry if isinstance(entry, (list, tuple)) else (entry,))
            if isinstance(each, torch.Tensor)
        ]
        return Step(self.func, rest, self.kwargs, Moment(_LEVER, place, inputs))


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function makes of its arguments, where scores that were put off may be among them."""
    name = getattr(func, "__name__", "")
    first = args[0] if args else None
    if isinstance(first, Deferred) and first._memfit_real is None:
        if name in _PLAIN or (name == "__get__" and func in _PROPERTIES):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if torch.is_grad_enabled():
            found = _on(first, Deed(func, name, args, kwargs))
            if found is not None:
                return found
    if name == "einsum":
        found = _lettered_values(args, kwargs)
        if found is not None:
            return found
    if any(holds(each) for each in (*args, *kwargs.values())):
        if name in _OBSERVERS:
            for each in _held((args, kwargs)):
                observed(each)
        args = tuple(outside(each) for each in args)
        kwargs = {key: outside(each) for key, each in kwargs.items()}
    return func(*args, **kwargs)


def holds(value: Any) -> bool:
    return next(_held(value), None) is not None


def _held(value: Any) -> Iterator[Any]:
    """The stand-ins among what a function is given."""
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


def _lettered_values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product of the weights with the values that is written with letters."""
    if kwargs or not isinstance(args[0], str) or not torch.is_grad_enabled():
        return None
    terms = operands(args)
    waiting = [
        index for index, each in enumerate(terms) if isinstance(each, Deferred) and each._memfit_real is None
    ]
    if len(waiting) != 1 or len(terms) != 2 or isinstance(terms[1 - waiting[0]], Deferred):
        return None
    value = einsum.attended(args[0], waiting[0], terms)
    if value is None:
        return None
    made = _attend(terms[waiting[0]], value[0])
    return None if made is None else made.permute(value[1])


def _attend(stand_in: Any, value: torch.Tensor) -> Any:
    """The product of weights with values, where it is one that the kernels have."""
    scores: Scores = stand_in._memfit
    query, (shape, kind) = scores.query, _form(stand_in)
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


def _form(stand_in: Any) -> tuple[tuple[int, ...], torch.dtype]:
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(stand_in.shape), stand_in.dtype


def _on(stand_in: Any, deed: Deed) -> Any:
    """What an operation makes of scores that were put off; None where it is not one of attention's."""
    name, rest = deed.name, deed.args[1:]
    if name in PRODUCTS:
        plain = len(rest) == 1 and not deed.kwargs and not isinstance(rest[0], Deferred)
        return _attend(stand_in, rest[0]) if plain else None
    scores: Scores = stand_in._memfit
    shape, kind = _form(stand_in)
    found = _RULES[name](scores, shape, kind, deed) if name in _RULES else None
    if found is None:
        return None
    known, after = found
    if not known and after == kind:
        return stand_in
    changed = scores.after(deed.step(scores.query.device), **known)
    if name in _IN_PLACE or (name == "dropout" and deed.kwargs.get("inplace")):
        if after != kind:
            return None
        stand_in._memfit = changed
        return stand_in
    stand_in._memfit_used = True
    return deferred(changed, shape, after)


# What a rule knows of the scores after an operation, and their type then; nothing known, and the same type,
# where they are the very same tensor.
_Known = tuple[dict[str, Any], torch.dtype] | None


def _dropped(scores: Scores, _shape: tuple[int, ...], kind: torch.dtype, deed: Deed) -> _Known:
    if deed.func is not functional.dropout or not scores.softmax or scores.dropout or len(deed.args) > 3:
        return None
    given = inspect.signature(functional.dropout).bind(*deed.args, **deed.kwargs)
    given.apply_defaults()
    rate = given.arguments["p"]
    if not isinstance(rate, (int, float)) or not 0.0 <= rate < 1.0:
        return None
    return ({"dropout": float(rate)} if given.arguments["training"] and rate else {}), kind


def _cast(scores: Scores, _shape: tuple[int, ...], kind: torch.dtype, deed: Deed) -> _Known:
    """The kernels' softmax is in fp32 whatever goes in, so a cast around it changes nothing."""
    other = deed.args[1] if len(deed.args) > 1 else None
    wanted = torch.float32 if deed.name == "float" else getattr(other, "dtype", other)
    if deed.kwargs or len(deed.args) > 2 or not isinstance(wanted, torch.dtype):
        return None
    if getattr(other, "device", scores.query.device) != scores.query.device:
        return None
    known = (torch.float32, scores.query.dtype, _computed(scores.query))
    if wanted == kind:
        return {}, kind
    return ({"scale": scores.scale}, wanted) if wanted in known and kind != torch.float64 else None


def _computed(query: torch.Tensor) -> torch.dtype:
    """The type of products here."""
    place = query.device.type
    return torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else query.dtype


def _softmax(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, deed: Deed) -> _Known:
    rest, kwargs = deed.args[1:], deed.kwargs
    dimension = rest[0] if rest else kwargs.get("dim")
    extra = {key for key, entry in kwargs.items() if entry is not None} - {"dim", "_stacklevel", "dtype"}
    if scores.softmax or extra or len(rest) > 1 or dimension not in (-1, len(shape) - 1):
        return None
    wanted = kwargs.get("dtype")
    if wanted not in (None, torch.float32, kind) or (wanted is not None and kind == torch.float64 != wanted):
        return None
    # Autocast may have it in fp32; where it does is told by one of nothing.
    with torch.no_grad(), torch._C.DisableTorchFunction():
        nothing = torch.empty(0, 1, dtype=kind, device=scores.query.device)
        after = functional.softmax(nothing, -1, dtype=wanted).dtype
    return {"softmax": True}, after


def _scaled(scores: Scores, _shape: tuple[int, ...], kind: torch.dtype, deed: Deed) -> _Known:
    if scores.softmax or scores.keep is not None or scores.bias is not None:
        return None
    other = deed.args[1] if len(deed.args) == 2 and not deed.kwargs else None
    if isinstance(other, bool) or not isinstance(other, (int, float)) or not 0.0 < other < math.inf:
        return None
    factor = float(other) if "mul" in deed.name else 1.0 / float(other)
    return {"scale": scores.scale * factor}, kind


def _masked(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, deed: Deed) -> _Known:
    if scores.softmax or len(deed.args) != 3 or deed.kwargs:
        return None
    mask, fill = deed.args[1:]
    certain = isinstance(fill, (int, float)) and fill <= max(_MASKED, torch.finfo(kind).min)
    if not certain or not _fits(mask, scores, shape) or mask.dtype != torch.bool:
        return None
    fill = float(fill)
    # What counts least where nothing counts is told for one number only.
    if (scores.keep is not None and scores.fill != fill) or (scores.bias is not None and fill != -math.inf):
        return None
    keep = ~mask
    if scores.bias is not None and _empty_rows(scores.bias.masked_fill(mask, fill)):
        return None
    return {"keep": keep if scores.keep is None else scores.keep & keep, "fill": fill}, kind


def _biased(scores: Scores, shape: tuple[int, ...], kind: torch.dtype, deed: Deed) -> _Known:
    other: Any = deed.args[1] if len(deed.args) == 2 and not deed.kwargs else None
    if scores.softmax or scores.keep is not None or not _fits(other, scores, shape):
        return None
    if other.requires_grad or not other.is_floating_point():
        return None
    after = torch.promote_types(kind, other.dtype) if other.dim() and deed.name not in _IN_PLACE else kind
    if after not in (kind, torch.float32):
        return None
    bias = other if scores.bias is None else scores.bias + other
    return None if _empty_rows(bias) else ({"bias": bias}, after)


def _empty_rows(bias: torch.Tensor) -> bool:
    """Whether in some row nothing is left of the scores: so far below zero, the kernels' backward cannot tell
    them apart.
    """
    if bias.is_cuda and torch.cuda.is_current_stream_capturing():
        return True
    base = bias if bias._base is None else bias._base
    known = _EMPTY.setdefault(base, {})
    place = (bias.storage_offset(), bias.shape, bias.stride())
    version, empty = known.get(place, (-1, False))
    if version != bias._version:
        # A wait for the device, once for each mask.
        empty = bias.numel() > 0 and bool((bias.detach().amax(-1) < _FAR).any())
        known[place] = (bias._version, empty)
    return empty


def _fits(other: Any, scores: Scores, shape: tuple[int, ...]) -> bool:
    """Whether this is a tensor that leaves the scores' shape as it is."""
    if type(other) is not torch.Tensor or other.device != scores.query.device or other.dim() > len(shape):
        return False
    pairs = zip(reversed(other.shape), reversed(shape), strict=False)
    return all(one in (1, whole) for one, whole in pairs)


# Of masks that are added, whether they leave rows empty: where they lie in their memory, with the version
# that was looked at.
_EMPTY: Any = WeakTensorKeyDictionary()
# How far below zero fp32 still tells scores apart.
_FAR = -1e3
PRODUCTS = ("matmul", "__matmul__", "bmm")
_RULES: dict[str, Callable[[Scores, tuple[int, ...], torch.dtype, Deed], _Known]] = {
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
# What the stand-in knows itself.
_PLAIN = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "__len__")
_PROPERTIES = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "is_cpu", "layout")
}
# What asks for the gradient of a tensor.
_OBSERVERS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook", "grad")
