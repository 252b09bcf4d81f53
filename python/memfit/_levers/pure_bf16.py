"""`pure-bf16`: weights, gradients and moments in bf16.

Most updates are smaller than half of what separates two numbers of bf16, and rounding to the nearest would
lose them all. So an update is computed in fp32, a few parameters at a time, and what comes of it is rounded
up or down by chance.

Layers that keep running statistics stay in fp32, with what they pass on in bf16: so little is added to these
at a time that bf16 would not move. Of other buffers, tables and masks meet activations and have to be of
their type; single numbers and rows of them, as frequencies of positions and noise schedules are, are computed
with first, and would lose digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .pieces import take_over
from .registry import Stage, lever
from .rounding import Rounding
from .states import Halved
from .target import CannotApply, Target, Undo, take_out
from .wrapping import all_or_none, wrap

# They take a mixture: inputs in bf16 beside weights and statistics in fp32.
_STATISTICAL = nn.modules.batchnorm._NormBase
_WIDE = (torch.float32, torch.float64)


@lever("pure-bf16", Stage.MODEL, 60)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Cast in place; its value is true. The weights as they were wait on the host, so that `undo` gives back
    the same bits where nothing was trained.
    """
    statistical = {
        id(each)
        for module in target.model.modules()
        if isinstance(module, _STATISTICAL)
        for each in module.parameters()
    }
    wide = [each for each in target.model.parameters() if each.dtype in _WIDE and id(each) not in statistical]
    if not wide:
        raise CannotApply(name, "no weight has more than 16 bits")
    return all_or_none(_steps(target, wide, name))


def _steps(target: Target, wide: list[nn.Parameter], name: str) -> Iterator[Undo]:
    # First what may be refused.
    for optimizer in target.optimizers:
        yield _moments_of_narrow(optimizer)
        yield _round_updates(optimizer, name)
    yield _cast(wide, target.undoes)
    for module in target.model.modules():
        yield _buffers(module)

    def prepare(batch: Any) -> Any:
        return _walk(batch)

    target.preparations.append(prepare)
    yield lambda: take_out(target.preparations, prepare)


def _cast(wide: list[nn.Parameter], undoes: bool) -> Undo:
    kept = [(each, each.dtype, each.data.to("cpu", copy=True)) for each in wide if undoes]
    for parameter in wide:
        parameter.data = parameter.data.to(torch.bfloat16)
        parameter.grad = None

    def undo() -> None:
        for parameter, kind, before in kept:
            now = parameter.data
            same = before.to(torch.bfloat16).to(now.device) == now
            parameter.data = torch.where(same, before.to(now.device), now.to(kind))
            parameter.grad = None

    return undo


def _buffers(module: nn.Module) -> Undo:
    """A module's own buffers, and what it passes on where some of them stay as they are."""
    if isinstance(module, _STATISTICAL):
        return lambda: None
    wide = {
        key: buffer for key, buffer in module._buffers.items() if buffer is not None and buffer.dtype in _WIDE
    }
    weightless = next(module.parameters(), None) is None
    cast = {
        key: buffer
        for key, buffer in wide.items()
        if not weightless or (buffer.dim() > 1 and "inv_freq" not in key)
    }
    for key, buffer in cast.items():
        module._buffers[key] = _narrowed(buffer)
    stays = any(buffer.dim() for key, buffer in wide.items() if key not in cast)
    unwrap = wrap(module, _passes_on_bf16) if stays and weightless else None

    def undo() -> None:
        if unwrap is not None:
            unwrap()
        for key, buffer in cast.items():
            now = module._buffers.get(key)
            if now is not None:
                same = _narrowed(buffer).to(now.device) == now
                module._buffers[key] = buffer.copy_(torch.where(same, buffer, now.to(buffer.dtype)))

    return undo


def _narrowed(buffer: torch.Tensor) -> torch.Tensor:
    """In bf16; the least number of fp32, as masks have it, would become infinite, and rows of nothing else no
    numbers.
    """
    most = torch.finfo(torch.bfloat16).max
    return torch.where(buffer.isinf(), buffer, buffer.clamp(-most, most)).to(torch.bfloat16)


def _passes_on_bf16(_module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What computes with digits of its own gives bf16 to those that have only that."""
    return _walk(forward(*args, **kwargs))


def _round_updates(optimizer: torch.optim.Optimizer, name: str) -> Undo:
    pieces, undo = take_over(optimizer, name)
    if not pieces.elementwise:
        undo()
        raise CannotApply(
            name,
            f"{type(optimizer).__name__} is not known to update each number by itself, so its updates cannot be rounded by chance, "
            "and most are too small for bf16; those of AdamW and SGD can",
        )
    pieces.rounding, pieces.packing = Rounding(), Halved()
    pieces.pack_all()

    def back() -> None:
        pieces.unpack_all()
        pieces.rounding = pieces.packing = None
        undo()

    return back


def _moments_of_narrow(optimizer: torch.optim.Optimizer) -> Undo:
    """Parameters that were in bf16 before have moments of their own type again."""
    narrow = [
        each for group in optimizer.param_groups for each in group["params"] if each.dtype == torch.bfloat16
    ]

    def undo() -> None:
        for parameter in narrow:
            known = optimizer.state.get(parameter) or {}
            for key, value in known.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape == parameter.shape:
                    known[key] = value.to(parameter.dtype)

    return undo


def _walk(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(torch.bfloat16) if value.dtype in _WIDE else value
    if type(value) is dict:
        return {key: _walk(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_walk(entry) for entry in value)
    return value
