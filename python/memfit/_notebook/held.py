"""GPU memory that a failed cell's traceback and a notebook's stored outputs hold."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .._errors import chained

#: Objects that are looked at, so that a hint never takes long.
MAX_OBJECTS = 20_000


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error of a GPU."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return "OutOfMemoryError" in names or "CUDA out of memory" in str(error)


def held_bytes(error: BaseException, space: dict[str, Any]) -> int:
    """Return the bytes of GPU tensors that only the error's frames and the outputs lead to.

    A lower bound: what autograd keeps for the backward pass cannot be seen from Python.
    """
    if "torch" not in sys.modules:
        return 0
    own = [value for name, value in space.items() if not _of_outputs(name)]
    outputs = [value for name, value in space.items() if _of_outputs(name)]
    kept = _storages(own)
    return sum(size for place, size in _storages([*_locals(error), *outputs]).items() if place not in kept)


def _of_outputs(name: str) -> bool:
    return name in ("Out", "_oh", "_", "__", "___") or (name[:1] == "_" and name[1:].isdigit())


def _locals(error: BaseException | None) -> Iterator[Any]:
    """Return the variables of an error's functions; those of a cell itself are the notebook's own."""
    # The levers' package imports torch.
    from .._levers.variables import variables

    for each in chained(error):
        trace = each.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                yield from variables(frame).values()
            trace = trace.tb_next


def _storages(values: Iterable[Any]) -> dict[int, int]:
    """Return the GPU storages that values lead to, with their bytes."""
    import torch

    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting = list(values)
    while waiting and len(seen) < MAX_OBJECTS:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), torch.Tensor):
            if value.is_cuda:
                storage = value.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
            if value.is_leaf and value.grad is not None:
                waiting.append(value.grad)
        elif issubclass(type(value), torch.nn.Module):
            waiting += [*value.parameters(), *value.buffers()]
        elif isinstance(value, dict):
            waiting += list(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += list(value)
        elif issubclass(type(value), torch.optim.Optimizer):
            waiting += list(value.state.values())
    return found
