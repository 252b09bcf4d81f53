"""`channels-last`: images and filters in `channels_last` memory format, which tensor cores prefer for
convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, take_out

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@lever("channels-last", Stage.MODEL, 70)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Convert filters and images to `channels_last`; `value` is `True`."""
    filters = [parameter for parameter in target.model.parameters() if parameter.dim() in _FORMATS]
    if not filters:
        raise CannotApply(
            name, ("the model has no convolution filters: no parameter has four or five dimensions")
        )
    before = [(parameter, parameter.data.stride()) for parameter in filters]
    for parameter in filters:
        parameter.data = parameter.data.contiguous(memory_format=_FORMATS[parameter.dim()])

    def prepare(batch: Any) -> Any:
        return _walk(batch)

    target.preparations.append(prepare)

    def undo() -> None:
        take_out(target.preparations, prepare)
        for parameter, strides in before:
            plain = torch.empty_strided(
                parameter.shape, strides, dtype=parameter.dtype, device=parameter.device
            )
            parameter.data = plain.copy_(parameter.data)

    return undo


def _walk(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() in _FORMATS and value.is_floating_point() and not isinstance(value, nn.Parameter):
            return value.contiguous(memory_format=_FORMATS[value.dim()])
        return value
    if isinstance(value, dict):
        return {key: _walk(entry) for key, entry in value.items()} if type(value) is dict else value
    if type(value) in (list, tuple):
        return type(value)(_walk(entry) for entry in value)
    return value
