"""Operations: their names, their arguments, and the tensors that they write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Arguments that an operation writes to without declaring it in its schema.
_UNDECLARED = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
}


def written_by(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operation writes to."""
    undeclared = _UNDECLARED.get(bare_name(func), ())
    found: list[torch.Tensor] = []
    for argument, value in named_arguments(func, args, kwargs):
        declared = argument.alias_info is not None and argument.alias_info.is_write
        if declared or argument.name in undeclared:
            values = value if isinstance(value, (list, tuple)) else [value]
            found += [each for each in values if isinstance(each, torch.Tensor)]
    return found


def bare_name(func: Any) -> str:
    """Return an operation's name without its namespace and overload."""
    return str(func.name().split("::")[-1].split(".")[0])


def named_arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield an operation's declared arguments with their values."""
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def is_view(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def argument_name(func: Any, names: tuple[str, ...]) -> str | None:
    known = {argument.name for argument in func._schema.arguments}
    return next((name for name in names if name in known), None)


def with_argument(func: Any, args: Any, kwargs: Any, name: str, value: Any) -> tuple[Any, Any]:
    """Return the arguments with another value for one of them."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name and index < len(args):
            return (*args[:index], value, *args[index + 1 :]), kwargs
    return args, {**kwargs, name: value}
