"""A placeholder for logits: operations on logits before the loss are applied to the hidden states instead.

Some operations return views, which share memory. Once something may write to a placeholder or a view of it,
or keeps its memory or gradient, the full logits are computed; the placeholder and all its views represent
them from then on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from .later import left_alone
from .promise import Deferred, State, observed, read, root_of, settle, settled, state_of
from .promised_loss import promised_loss


class Logits(torch.Tensor):
    """A placeholder for `forward(hidden)` with its shape and type, but without memory."""

    _memfit: State

    # Compiling this would gain nothing, and crashes some PyTorch versions.
    @classmethod
    @left_alone
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], cls) and settled(args[0]) is None:
            rule = _RULES.get(inspect.unwrap(func))
            answer = NotImplemented if rule is None else rule(*args, **kwargs)
            if answer is not NotImplemented:
                return answer
            if getattr(func, "__name__", "") == "__get__" and func in _PLAIN:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _OBSERVERS:
            _each((args, kwargs), observed)
        only_read = name in _READERS and kwargs.get("out") is None and not kwargs.get("inplace")
        only_read = only_read or (name == "__getitem__" and _copies(args[1]))
        get = read if only_read else settle
        return func(*_each(args, get), **_each(kwargs, get))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(
            f"`chunked-loss` does not support `{func}` on the logits\nhint: leave this lever out"
        )


def make(deferred: Deferred, form: torch.Tensor, base: Any = None, view: Any = None) -> torch.Tensor:
    """Create a placeholder."""
    made = torch.Tensor._make_wrapper_subclass(
        Logits, form.shape, dtype=form.dtype, device=deferred.hidden.device, requires_grad=deferred.learns
    )
    with torch._C.DisableTorchFunctionSubclass():
        made._memfit = State(deferred, form, base, view)
        if deferred.learns:
            # Registered on the placeholder itself: any other call would compute the logits.
            made.register_hook(_lost)
    return made


def _lost(_gradient: torch.Tensor) -> None:
    """Raise an error: a gradient of the placeholder itself goes nowhere."""
    raise RuntimeError(
        "`chunked-loss` cannot follow the logits into a custom autograd function: their gradient would be "
        "lost\n"
        "hint: leave this lever out"
    )


def _each(value: Any, get: Callable[[Any], Any]) -> Any:
    """Replace the placeholders in a function's arguments."""
    if isinstance(value, Logits):
        return get(value)
    if type(value) in (list, tuple):
        return type(value)(_each(entry, get) for entry in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(entry, get) for entry in value))
    if type(value) is dict:
        return {key: _each(entry, get) for key, entry in value.items()}
    return value


# ------------------------------------------------------------------------------------ deferred operations


def _derived(logits: Any, view: Callable[[torch.Tensor], torch.Tensor], **changed: Any) -> torch.Tensor:
    """Return a placeholder for changed logits; a view if torch would return a view."""
    state = state_of(logits)
    form = view(state.form)
    learns = changed.pop("learns", True) and state.deferred.learns and torch.is_grad_enabled()
    deferred = replace(state.deferred, **changed, learns=learns)
    if form.untyped_storage()._cdata == state.form.untyped_storage()._cdata:
        return make(deferred, form, logits, view)
    root_of(state).used = True
    return make(deferred, form)


def _reshaped(func: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Apply views that do not touch the class dimension to the hidden states."""

    def rule(logits: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_of(logits)
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
    """Index dimensions other than the classes, as for the shift by one token."""
    state = state_of(logits)
    shape = state.form.shape
    parts = index if isinstance(index, tuple) else (index,)
    if state.deferred.second or not all(isinstance(part, (slice, int)) or part is Ellipsis for part in parts):
        return NotImplemented
    if any(isinstance(part, bool) for part in parts):
        return NotImplemented
    explicit = [part for part in parts if part is not Ellipsis]
    dots = len(explicit) < len(parts)
    # `True` if one of the entries indexes the class dimension.
    named = len(explicit) == len(shape) or (dots and parts[-1] is not Ellipsis)
    if named and explicit[-1] != slice(None):
        return NotImplemented
    if state.form[index].dim() < 2:
        return NotImplemented
    return _derived(logits, lambda whole: whole[index], hidden=state.deferred.hidden[index])


def _copies(index: Any) -> bool:
    """Return `True` if an index gives a copy rather than a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, (torch.Tensor, list)) for part in parts)


def _swapped(logits: Any, *args: Any, **kwargs: Any) -> Any:
    """Swap (N, tokens, classes) to (N, classes, tokens), the layout of sequences in `cross_entropy`."""
    state = state_of(logits)
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
    state = state_of(logits)
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
    # Any other argument asks for a copy, or for the type of another tensor.
    if len(kinds) + len(places) < len(args):
        return NotImplemented
    return _cast(logits, kinds[0]) if kinds else logits


def _contiguous(logits: Any, **kwargs: Any) -> Any:
    """Return the placeholder itself if it is contiguous, else a copy."""
    if kwargs:
        return NotImplemented
    return logits if state_of(logits).form.is_contiguous() else _derived(logits, torch.Tensor.contiguous)


def _detached(logits: Any) -> Any:
    return _derived(logits, torch.Tensor.detach, learns=False)


_BY_FUNCTION: dict[Any, Callable[..., Any]] = {
    functional.cross_entropy: promised_loss,
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
    torch.Tensor.size: lambda logits, dim=None: state_of(logits).form.size(*(() if dim is None else (dim,))),
    torch.Tensor.stride: lambda logits, *dim: state_of(logits).form.stride(*dim),
    torch.Tensor.is_contiguous: lambda logits, **kwargs: state_of(logits).form.is_contiguous(**kwargs),
    torch.Tensor.dim: lambda logits: state_of(logits).form.dim(),
    torch.Tensor.numel: lambda logits: state_of(logits).form.numel(),
    torch.Tensor.is_floating_point: lambda _: True,
    torch.is_floating_point: lambda _: True,
    torch.Tensor.__len__: lambda logits: len(state_of(logits).form),
}

# A dry run wraps PyTorch's operators, and takes the wrappers away when something is compiled. What is wrapped
# stays the same.
_RULES = {inspect.unwrap(function): rule for function, rule in _BY_FUNCTION.items()}

# Properties that the placeholder answers itself.
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


# Functions that read logits without writing to them or returning a view.
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
# Functions that ask for the gradient of a tensor.
_OBSERVERS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook", "grad")
