"""`pure-bf16`: weights, gradients and moments in bf16. Small updates are lost in rounding, so it is another training."""

from __future__ import annotations

from typing import Any

import torch

from .target import CannotApply, Target, Undo, take_out


def apply(target: Target, _value: Any, name: str) -> Undo:
    """Cast in place; its value is true. The weights as they were wait on the host, so that `undo` gives back the same bits
    where nothing was trained."""
    parameters = [each for each in target.model.parameters() if each.is_floating_point()]
    wide = [each for each in parameters if each.dtype in (torch.float32, torch.float64)]
    if not wide:
        raise CannotApply(name, "no weight has more than 16 bits")
    kept = [(each, each.dtype, each.data.to("cpu", copy=True)) for each in wide]
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

    def undo() -> None:
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


def _walk(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(torch.bfloat16) if value.dtype in (torch.float32, torch.float64) else value
    if type(value) is dict:
        return {key: _walk(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_walk(entry) for entry in value)
    return value
