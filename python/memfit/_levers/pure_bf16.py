"""`pure-bf16`: weights, gradients and moments in bf16.

Most updates are smaller than half of what separates two numbers of bf16, and rounding to the nearest would lose them all. So
an update is computed in fp32, a few parameters at a time, and what comes of it is rounded up or down by chance.
"""

from __future__ import annotations

from typing import Any

import torch

from .pieces import take_over
from .rounding import Rounding
from .states import Halved
from .target import CannotApply, Target, Undo, take_out
from .wrapping import together


def apply(target: Target, _value: Any, name: str) -> Undo:
    """Cast in place; its value is true. The weights as they were wait on the host, so that `undo` gives back the same bits
    where nothing was trained."""
    parameters = [each for each in target.model.parameters() if each.is_floating_point()]
    wide = [each for each in parameters if each.dtype in (torch.float32, torch.float64)]
    if not wide:
        raise CannotApply(name, "no weight has more than 16 bits")
    kept = [(each, each.dtype, each.data.to("cpu", copy=True)) for each in wide if target.undoes]
    for parameter in wide:
        parameter.data = parameter.data.to(torch.bfloat16)
        parameter.grad = None
    buffers = [
        (module, key, buffer)
        for module in target.model.modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and buffer.dtype in (torch.float32, torch.float64)
    ]
    for module, key, buffer in buffers:
        module._buffers[key] = buffer.to(torch.bfloat16)

    def prepare(batch: Any) -> Any:
        return _walk(batch)

    target.preparations.append(prepare)
    exact = together([_round_updates(optimizer, name) for optimizer in target.optimizers])

    def undo() -> None:
        exact()
        take_out(target.preparations, prepare)
        for parameter, kind, before in kept:
            now = parameter.data
            same = before.to(torch.bfloat16).to(now.device) == now
            parameter.data = torch.where(same, before.to(now.device), now.to(kind))
            parameter.grad = None
        for module, key, buffer in buffers:
            now = module._buffers[key]
            if now is not None:
                same = buffer.to(torch.bfloat16).to(now.device) == now
                module._buffers[key] = buffer.copy_(torch.where(same, buffer, now.to(buffer.dtype)))

    return undo


def _round_updates(optimizer: torch.optim.Optimizer, name: str) -> Undo:
    try:
        pieces, undo = take_over(optimizer, name)
    except CannotApply:
        return lambda: None
    if not pieces.elementwise:
        # Its update looks at whole matrices, in the type that they have.
        undo()
        return lambda: None
    pieces.rounding, pieces.packing = Rounding(), Halved()
    pieces.pack_all()

    def back() -> None:
        pieces.unpack_all()
        pieces.rounding = pieces.packing = None
        undo()

    return back


def _walk(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(torch.bfloat16) if value.dtype in (torch.float32, torch.float64) else value
    if type(value) is dict:
        return {key: _walk(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_walk(entry) for entry in value)
    return value
