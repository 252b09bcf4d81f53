"""`pure-bf16`: weights, gradients and optimizer state in bf16.

Most updates are smaller than half the distance between neighbouring bf16 numbers, so rounding to nearest
would lose them all. Updates are therefore computed in fp32, a few parameters at a time, and rounded
stochastically.

Layers with running statistics stay in fp32 and output bf16: their updates are too small for bf16. Of other
buffers, tables and masks are combined with activations and need their type; scalars and vectors, such as
position frequencies and noise schedules, are inputs of further computation and would lose accuracy.
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

# They support bf16 inputs with fp32 weights and statistics.
_STATISTICAL = nn.modules.batchnorm._NormBase
_WIDE = (torch.float32, torch.float64)


@lever("pure-bf16", Stage.MODEL, 60)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Cast in place; `value` is `True`. The original weights are kept on the host, so that `undo` restores
    the same bits if nothing was trained.
    """
    statistical = {
        id(each)
        for module in target.model.modules()
        if isinstance(module, _STATISTICAL)
        for each in module.parameters()
    }
    wide = [each for each in target.model.parameters() if each.dtype in _WIDE and id(each) not in statistical]
    if not wide:
        raise CannotApply(name, "all weights have 16 bits or fewer")
    return all_or_none(_steps(target, wide, name))


def _steps(target: Target, wide: list[nn.Parameter], name: str) -> Iterator[Undo]:
    # First the steps that may be refused.
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
    """Cast a module's own buffers, and its output if some of them stay as they are."""
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
    """Cast to bf16. Clamp first: the minimum of fp32, which masks use, would become infinite, and fully
    masked rows NaN.
    """
    most = torch.finfo(torch.bfloat16).max
    return torch.where(buffer.isinf(), buffer, buffer.clamp(-most, most)).to(torch.bfloat16)


def _passes_on_bf16(_module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a module that computes in fp32, and cast its output to bf16."""
    return _walk(forward(*args, **kwargs))


def _round_updates(optimizer: torch.optim.Optimizer, name: str) -> Undo:
    pieces, undo = take_over(optimizer, name)
    if not pieces.elementwise:
        undo()
        raise CannotApply(
            name,
            f"no stochastic rounding for {type(optimizer).__name__}, which is not known to update each "
            "element independently, and most updates are too small for bf16; AdamW and SGD are supported",
        )
    pieces.rounding, pieces.packing = Rounding(), Halved()
    pieces.pack_all()

    def back() -> None:
        pieces.unpack_all()
        pieces.rounding = pieces.packing = None
        undo()

    return back


def _moments_of_narrow(optimizer: torch.optim.Optimizer) -> Undo:
    """Return a function that gives parameters which were in bf16 before state in their own type again."""
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
