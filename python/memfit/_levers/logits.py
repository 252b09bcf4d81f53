"""A promise of logits: what training code does with logits before its loss is done to what they would be made
from.

Some of that gives views, which share memory. Once something may write to a promise, or to any view of it, or
holds on to its memory or its gradient, the logits as a whole are made, and are what the promise and all its
views stand for from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .later import Moment, gradients_lost, learning, left_alone
from .piecewise import Pieces, cross_entropy
from .target import Target

_LEVER = "chunked-loss"
_LATE = (
    "logits that are first read after the optimizer's step, as for an accuracy, are those of the weights as they are by then: with "
    "`chunked-loss` they were not there before. Read them before the step to have those that the loss saw"
)


@dataclass(frozen=True)
class Deferred:
    """How the logits of a promise would be made."""

    forward: Callable[..., torch.Tensor]
    hidden: torch.Tensor
    # In a piece.
    tokens: int
    head: nn.Linear
    target: Target
    # The type that the layer gives.
    kind: torch.dtype
    moment: Moment
    # Types that the logits are cast to, one after the other.
    casts: tuple[torch.dtype, ...] = ()
    # Where the classes are: the last dimension, or the second.
    second: bool = False
    # The layer, where it is one product of matrices and nothing more.
    linear: nn.Linear | None = None
    # Whether a gradient goes through them.
    learns: bool = True

    def real(self, late: bool = False) -> torch.Tensor:
        """The logits. For who reads them late, when they have served, they may be those of the weights as
        they are by then.
        """
        passed = late and self.moment.has_passed()
        if passed:
            self.target.note(_LATE)
        else:
            self.moment.check()
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns and not passed):
            made = self.forward(self.hidden)
            for cast in self.casts:
                made = made.to(cast)
            return made.movedim(-1, 1) if self.second else made


@dataclass
class _State:
    """What is known of one promise."""

    deferred: Deferred
    # As the logits would lie in memory.
    form: torch.Tensor
    # What this is a view of, and which.
    base: Any = None
    view: Callable[[torch.Tensor], torch.Tensor] | None = None
    # The logits; where they are not settled, only what reads them has seen these.
    real: torch.Tensor | None = None
    settled: bool = False
    # Whether something was made of them that does not come from the real ones.
    used: bool = False


class Logits(torch.Tensor):
    """A promise of `forward(hidden)`: has its shape and type, and no memory."""

    _memfit: _State

    # What a compiler made of this would be of no use, and some releases fall in the attempt.
    @classmethod
    @left_alone
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], cls) and _settled(args[0]) is None:
            rule = _RULES.get(func)
            answer = NotImplemented if rule is None else rule(*args, **kwargs)
            if answer is not NotImplemented:
                return answer
            if getattr(func, "__name__", "") == "__get__" and func in _PLAIN:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _OBSERVERS:
            _each((args, kwargs), _observed)
        only_read = name in _READERS and kwargs.get("out") is None and not kwargs.get("inplace")
        only_read = only_read or (name == "__getitem__" and _copies(args[1]))
        get = _read if only_read else _settle
        return func(*_each(args, get), **_each(kwargs, get))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(
            f"`chunked-loss` does not know what `{func}` does with the logits\nhint: leave this lever out"
        )


def make(deferred: Deferred, form: torch.Tensor, base: Any = None, view: Any = None) -> torch.Tensor:
    """A promise."""
    made = torch.Tensor._make_wrapper_subclass(
        Logits, form.shape, dtype=form.dtype, device=deferred.hidden.device, requires_grad=deferred.learns
    )
    with torch._C.DisableTorchFunctionSubclass():
        made._memfit = _State(deferred, form, base, view)
        if deferred.learns:
            # On the promise itself: to ask it for anything else would be to ask for the logits.
            made.register_hook(_lost)
    return made


def _lost(_gradient: torch.Tensor) -> None:
    """A gradient arrives at the promise itself, and so nowhere."""
    raise RuntimeError(
        "`chunked-loss` cannot follow the logits into an autograd function of somebody's own: their gradient would be lost\n"
        "hint: leave this lever out"
    )


def _state(logits: Any) -> _State:
    with torch._C.DisableTorchFunctionSubclass():
        return logits._memfit  # type: ignore[no-any-return]


def _root(state: _State) -> _State:
    """Of what a promise is a view, in the end."""
    while state.base is not None:
        state = _state(state.base)
    return state


def _settled(logits: Any) -> torch.Tensor | None:
    """What the promise stands for since the logits were made for good."""
    state = _state(logits)
    if state.settled or state.base is None:
        return state.real if state.settled else None
    above = _settled(state.base)
    if above is None:
        return None
    assert state.view is not None
    with torch.inference_mode(False), torch.set_grad_enabled(state.deferred.learns):
        made = state.view(above)
    if made.untyped_storage()._cdata != above.untyped_storage()._cdata:
        raise RuntimeError(
            "`chunked-loss` took a copy of the logits for a view of them\nhint: leave this lever out"
        )
    state.real, state.settled = made, True
    return made


def _settle(logits: Any) -> torch.Tensor:
    """The logits, for whatever may write to them or holds on to them."""
    root = _root(_state(logits))
    if not root.settled:
        if root.real is None:
            with learning():
                root.real = root.deferred.real()
        root.settled = True
    made = _settled(logits)
    assert made is not None
    return made


def _read(logits: Any) -> torch.Tensor:
    """The logits, for what only reads them."""
    known = _settled(logits)
    if known is None:
        known = _seen(_state(logits))
    if known is not None:
        return known
    state = _state(logits)
    served = _root(state).used
    # Whose gradient is asked for later has to be what this is made from.
    _root(state).used |= state.base is not None
    made = state.deferred.real(late=served)
    if torch.is_grad_enabled() and made.requires_grad:
        state.real = made
    return made


def _seen(state: _State) -> torch.Tensor | None:
    """What others that read these logits, or those of which they are a view, have made of them."""
    if state.real is not None or state.base is None:
        return state.real
    above = _seen(_state(state.base))
    if above is None:
        return None
    assert state.view is not None
    with torch.set_grad_enabled(torch.is_grad_enabled() and state.deferred.learns):
        return state.view(above)


def _observed(logits: Any) -> Any:
    """Somebody wants to know the gradient of these logits."""
    if _settled(logits) is None and _root(_state(logits)).used:
        raise gradients_lost(_LEVER)
    return logits


def _each(value: Any, get: Callable[[Any], Any]) -> Any:
    """A function's arguments with something in the promises' place."""
    if isinstance(value, Logits):
        return get(value)
    if type(value) in (list, tuple):
        return type(value)(_each(entry, get) for entry in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(entry, get) for entry in value))
    if type(value) is dict:
        return {key: _each(entry, get) for key, entry in value.items()}
    return value


# ---------------------------------------------------------------------------------------- what is put off


def _derived(logits: Any, view: Callable[[torch.Tensor], torch.Tensor], **changed: Any) -> torch.Tensor:
    """A promise of what these logits become; a view of them where torch would give one."""
    state = _state(logits)
    form = view(state.form)
    learns = changed.pop("learns", True) and state.deferred.learns and torch.is_grad_enabled()
    deferred = replace(state.deferred, **changed, learns=learns)
    if form.untyped_storage()._cdata == state.form.untyped_storage()._cdata:
        return make(deferred, form, logits, view)
    _root(state).used = True
    return make(deferred, form)


def _reshaped(func: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Views that leave the classes alone: the same is done to the hidden states."""

    def rule(logits: Any, *args: Any, **kwargs: Any) -> Any:
        state = _state(logits)
        shape, hidden = state.form.shape, state.deferred.hidden
        if state.deferred.second:
            return NotImplemented
        try:
            after = func(state.form, *args, **kwargs)
        except (RuntimeError, TypeError, IndexError):
            return NotImplemented
        if after.dim() < 2 or after.shape[-1] != shape[-1] or after.dtype != state.form.dtype:
            return NotImplemented
        moved = hidden.reshape(*after.shape[:-1], hidden.shape[-1])
        return _derived(logits, lambda whole: func(whole, *args, **kwargs), hidden=moved)

    return rule


def _indexed(logits: Any, index: Any) -> Any:
    """A slice along other dimensions than the classes', as the shift by one token is."""
    state = _state(logits)
    shape = state.form.shape
    parts = index if isinstance(index, tuple) else (index,)
    if state.deferred.second or not all(isinstance(part, (slice, int)) or part is Ellipsis for part in parts):
        return NotImplemented
    if any(isinstance(part, bool) for part in parts):
        return NotImplemented
    explicit = [part for part in parts if part is not Ellipsis]
    dots = len(explicit) < len(parts)
    # Which of the entries, if any, speaks of the classes.
    named = len(explicit) == len(shape) or (dots and parts[-1] is not Ellipsis)
    if named and explicit[-1] != slice(None):
        return NotImplemented
    if state.form[index].dim() < 2:
        return NotImplemented
    return _derived(logits, lambda whole: whole[index], hidden=state.deferred.hidden[index])


def _copies(index: Any) -> bool:
    """Whether an index gives a copy rather than a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, (torch.Tensor, list)) for part in parts)


def _swapped(logits: Any, *args: Any, **kwargs: Any) -> Any:
    """(N, tokens, classes) as (N, classes, tokens), which is how `cross_entropy` takes sequences."""
    state = _state(logits)
    dimensions = tuple(args) or (kwargs.get("dim0"), kwargs.get("dim1"))
    if (
        state.deferred.second
        or state.form.dim() != 3
        or any(not isinstance(each, int) for each in dimensions)
    ):
        return NotImplemented
    if {each % 3 for each in dimensions} != {1, 2}:
        return NotImplemented
    return _derived(logits, lambda whole: whole.transpose(1, 2), second=True)


def _permuted(logits: Any, *order: Any, **named: Any) -> Any:
    wanted = tuple(order[0]) if len(order) == 1 and isinstance(order[0], (tuple, list)) else order
    return _swapped(logits, 1, 2) if wanted == (0, 2, 1) and not named else NotImplemented


def _cast(logits: Any, kind: torch.dtype) -> Any:
    state = _state(logits)
    if kind == state.form.dtype:
        return logits
    casts = (*state.deferred.casts, kind)
    return (
        _derived(logits, lambda whole: whole.to(kind), casts=casts)
        if kind.is_floating_point
        else NotImplemented
    )


def _to(logits: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        place = logits.device
    kinds = [each for each in (*args, kwargs.get("dtype")) if isinstance(each, torch.dtype)]
    places = [each for each in (*args, kwargs.get("device")) if isinstance(each, (torch.device, str))]
    known = {"dtype", "device", "non_blocking"} >= set(kwargs)
    if not known or any(torch.device(each) != place for each in places) or len(kinds) > 1:
        return NotImplemented
    # What else there may be asks for a copy, or for the type of another tensor.
    if len(kinds) + len(places) < len(args):
        return NotImplemented
    return _cast(logits, kinds[0]) if kinds else logits


def _contiguous(logits: Any, **kwargs: Any) -> Any:
    """Itself, or a copy, as torch has it."""
    if kwargs:
        return NotImplemented
    return logits if _state(logits).form.is_contiguous() else _derived(logits, torch.Tensor.contiguous)


def _detached(logits: Any) -> Any:
    return _derived(logits, torch.Tensor.detach, learns=False)


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
    state = _state(logits)
    deferred, shape = state.deferred, state.form.shape
    flat = deferred.second or len(shape) == 2
    if size_average is not None or reduce is not None or target.is_floating_point() or not flat:
        return NotImplemented
    # A weight that is learned would get no gradient here.
    if type(target) is not torch.Tensor or (weight is not None and weight.requires_grad):
        return NotImplemented
    rows = deferred.hidden.reshape(-1, deferred.hidden.shape[-1])
    labels = target.reshape(-1)
    if target.shape != ((shape[0], shape[2]) if len(shape) == 3 else shape[:1]):
        return NotImplemented
    if not len(rows) or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    deferred.moment.check()
    _root(state).used = True
    casts = deferred.casts
    if casts == (torch.float32,) and deferred.kind in (torch.float16, torch.bfloat16):
        casts = ()
    # Sums of losses are wider than 16 bits. Under autocast, cross entropy is one of the operations that run
    # in fp32.
    after = torch.float32 if torch.is_autocast_enabled(deferred.hidden.device.type) else state.form.dtype
    compiled = deferred.target.compiled
    entropy = cross_entropy if compiled is None else compiled(cross_entropy)

    def loss(values: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        for cast in casts:
            values = values.to(cast)
        return entropy(
            values,
            wanted,
            True,
            weight=weight if weight is None else weight.to(torch.promote_types(weight.dtype, torch.float32)),
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
    after = state.form.dtype if state.form.dtype == torch.float64 else after
    with torch.set_grad_enabled(torch.is_grad_enabled() and deferred.learns):
        if reduction == "none":
            return torch.cat(pieces.each(rows, labels)).view(target.shape).to(after)
        total = pieces.sum(rows, labels)
        mean = total if reduction == "sum" else _mean(total, labels != ignore_index, labels, weight)
        return mean.to(after)


def _mean(
    total: torch.Tensor, counted: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    if weight is None:
        count = counted.sum()
    else:
        own = weight[labels.where(counted, labels.new_zeros(()))]
        count = own.where(counted, weight.new_zeros(())).to(total.dtype).sum()
    # Of nothing there is no mean, but neither is there anything to learn.
    nothing = ~counted.any()
    return total / count.masked_fill(nothing, 1) + total.new_zeros(()).masked_fill(nothing, math.nan)


_RULES: dict[Any, Callable[..., Any]] = {
    functional.cross_entropy: _cross_entropy,
    torch.Tensor.view: _reshaped(torch.Tensor.view),
    torch.Tensor.reshape: _reshaped(torch.Tensor.reshape),
    torch.reshape: _reshaped(torch.reshape),
    torch.Tensor.flatten: _reshaped(torch.Tensor.flatten),
    torch.flatten: _reshaped(torch.flatten),
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.detach: _detached,
    torch.detach: _detached,
    torch.Tensor.__getitem__: _indexed,
    torch.Tensor.transpose: _swapped,
    torch.transpose: _swapped,
    torch.Tensor.permute: _permuted,
    torch.permute: _permuted,
    torch.Tensor.float: lambda logits: _cast(logits, torch.float32),
    torch.Tensor.double: lambda logits: _cast(logits, torch.float64),
    torch.Tensor.to: _to,
    torch.Tensor.size: lambda logits, dim=None: _state(logits).form.size(*(() if dim is None else (dim,))),
    torch.Tensor.stride: lambda logits, *dim: _state(logits).form.stride(*dim),
    torch.Tensor.is_contiguous: lambda logits, **kwargs: _state(logits).form.is_contiguous(**kwargs),
    torch.Tensor.dim: lambda logits: _state(logits).form.dim(),
    torch.Tensor.numel: lambda logits: _state(logits).form.numel(),
    torch.Tensor.is_floating_point: lambda _: True,
    torch.is_floating_point: lambda _: True,
    torch.Tensor.__len__: lambda logits: len(_state(logits).form),
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
        "layout",
        "is_sparse",
        "is_nested",
    )
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
}


# What reads logits, and neither writes to them nor keeps what shares their memory.
_READERS = {
    *("argmax", "argmin", "max", "min", "amax", "amin", "topk"),
    *("sort", "argsort", "kthvalue", "median", "multinomial", "histc"),
    *("softmax", "log_softmax", "logsumexp", "sum", "mean", "prod", "std"),
    *("var", "norm", "cumsum", "exp", "log", "log1p", "sigmoid"),
    *("logsigmoid", "tanh", "softplus"),
    *("abs", "neg", "square", "pow", "sqrt", "clamp", "clip"),
    *("isnan", "isinf", "isfinite", "nan_to_num", "any", "all", "equal"),
    *("allclose", "isclose"),
    *("eq", "ne", "lt", "le", "gt", "ge", "__eq__"),
    *("__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__neg__", "__abs__"),
    *("__pow__", "__rpow__"),
    *("add", "sub", "mul", "div", "true_divide", "__add__", "__radd__"),
    *("__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__rdiv__"),
    *("matmul", "__matmul__", "bmm", "mm", "where", "masked_fill", "gather"),
    *("take_along_dim", "index_select", "masked_select", "clone", "cat", "stack"),
    *("item", "tolist", "cross_entropy", "nll_loss", "kl_div", "mse_loss", "l1_loss"),
    *("smooth_l1_loss", "binary_cross_entropy_with_logits"),
    *("__format__", "__repr__"),
}
# What asks for the gradient of a tensor.
_OBSERVERS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook", "grad")
