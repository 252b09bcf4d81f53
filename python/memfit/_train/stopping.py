"""What is said when a training cannot go on: what holds the memory, and what would make room."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from memfit import _core

from .device import Meter, local
from .faults import Fault

# So many levers are named.
_MOST = 5


def told(
    model: nn.Module, optimizer: torch.optim.Optimizer, meter: Meter, fault: Fault, applied: Sequence[str]
) -> str:
    """What was on the device when a sample did not fit, and which levers would fit it; nothing is known of
    the host's.
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
        f"{_size(size)} {what}"
        for size, what in (
            (whole, "of parameters"),
            (states, "of the optimizer's states"),
            (rest, "of other tensors"),
            (sample, "of this sample and its gradients"),
        )
        if size
    ]
    lines = [f"on the device were {', '.join(held)}"] if held else []
    if missing:
        lines.append(f"at least {_size(missing)} more had to be free where it failed")
    named = [f"`{lever}` ({_core.lever_label(lever)}, about {_size(saves)})" for lever, saves, _ in remedies]
    enough = [text for text, (_, _, suffices) in zip(named, remedies, strict=True) if suffices and missing]
    if enough:
        lines.append(f"each of these alone saves more than that: {', '.join(enough[:_MOST])}")
    elif named:
        lines.append(f"what saves most of it: {', '.join(named[:_MOST])}")
    return "; ".join(lines)


def smaller_batch(items: int) -> str:
    """What a batch of fewer samples does to a training, said where nothing else is left."""
    return (
        f"a global batch of fewer than {items} samples is another training: an epoch then has more steps, so a schedule that "
        "counts steps ends too early unless it is made longer by as much, and learning rates are usually lowered with the "
        "batch (in proportion for SGD, by the square root for Adam); memfit changes none of them"
    )


def _size(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / 2**power:.1f} {unit}"
    return f"{size} B"
