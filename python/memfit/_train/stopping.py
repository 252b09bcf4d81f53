"""The error message of a training run that cannot go on: memory use, and levers that would help."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from memfit import _core

from .device import Meter, local
from .faults import Fault

# Maximum number of levers that are named.
_MAX_LEVERS = 5


def describe_memory(
    model: nn.Module, optimizer: torch.optim.Optimizer, meter: Meter, fault: Fault, applied: Sequence[str]
) -> str:
    """Describe the device's memory when a sample did not fit, and the levers that would help; empty on the
    host.
    """
    if not meter.cuda:
        return ""
    parameters = [local(each) for each in model.parameters()]
    states = sum(
        local(value).nbytes
        for known in optimizer.state.values()
        for value in known.values()
        if isinstance(value, torch.Tensor) and value.device.type == meter.device.type
    )
    whole = sum(each.nbytes for each in parameters)
    sample = max(fault.live - meter.base, 0)
    missing, remedies = _core.Controller.remedies(
        whole,
        sum(each.nbytes for each in parameters if each.requires_grad),
        states,
        sample,
        fault.message,
        fault.free,
        list(applied),
    )
    rest = max(meter.base - whole - states, 0)
    held = [
        f"{_core.format_size(size)} {what}"
        for size, what in (
            (whole, "of parameters"),
            (states, "of optimizer state"),
            (rest, "of other tensors"),
            (sample, "of this sample's activations and gradients"),
        )
        if size
    ]
    lines = [f"the device held {', '.join(held)}"] if held else []
    if missing:
        lines.append(f"the failed allocation needed at least {_core.format_size(missing)} more")
    named = [
        f"`{lever}` ({_core.lever_label(lever)}, about {_core.format_size(saves)})"
        for lever, saves, _ in remedies
    ]
    enough = [text for text, (_, _, suffices) in zip(named, remedies, strict=True) if suffices and missing]
    if enough:
        lines.append(f"each of these alone saves more than that: {', '.join(enough[:_MAX_LEVERS])}")
    elif named:
        lines.append(f"these save most of it: {', '.join(named[:_MAX_LEVERS])}")
    return "; ".join(lines)


def smaller_batch(items: int) -> str:
    """Describe the effect of a smaller batch on the training, if nothing else helps."""
    return (
        f"a global batch of fewer than {items} samples changes the training: an epoch then has more steps, "
        "so a schedule that counts steps ends too early unless it is extended accordingly, and learning "
        "rates are usually lowered with the batch size (linearly for SGD, by the square root for Adam); "
        "memfit changes none of them"
    )
