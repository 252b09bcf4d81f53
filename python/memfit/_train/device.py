"""Where a model computes, and what memory there is."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

# Of the device's memory, what is left alone for fragmentation and for what others take.
_MARGIN = 0.03


def device_of(model: nn.Module, device: torch.device | str | None) -> tuple[torch.device, bool]:
    """Where the model computes, and whether batches are to be moved there."""
    if device is not None:
        return torch.device(device), True
    places = {parameter.device for parameter in model.parameters()}
    if len(places) == 1:
        return next(iter(places)), True
    # A model on several devices moves its inputs itself.
    cuda = sorted((place for place in places if place.type == "cuda"), key=lambda place: place.index or 0)
    return (cuda[0] if cuda else torch.device("cpu")), not places


def room(device: torch.device) -> tuple[int, int]:
    """Free and all bytes of a device; nothing is known of the host's."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            free, capacity = torch.cuda.mem_get_info(device)
            return int(free), int(capacity)
    return 0, 0


def live(device: torch.device) -> int:
    """What tensors take now."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


def peak(device: torch.device) -> int:
    """The most that tensors took so far."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


def budget(device: torch.device, fragmented: int = 0) -> int | None:
    """What the allocator may come to, given what of that lay in no tensor before; nothing is known of the host's."""
    if device.type != "cuda":
        return None
    free, capacity = room(device)
    reserved = torch.cuda.memory_stats(device).get("reserved_bytes.all.current", 0)
    return max(int(free + reserved) - max(int(capacity * _MARGIN), fragmented), 0)


class Fragmentation:
    """What of the most that was reserved lay in no tensor at the worst.

    Looked at when tensors took more than ever before: peaks may be reset by anybody at any time, and from then until the
    next step what is reserved says nothing of what it is needed for.
    """

    def __init__(self) -> None:
        self._highest = 0
        self._worst = 0

    def now(self, device: torch.device) -> int:
        """In bytes; nothing is known of the host's."""
        if device.type != "cuda":
            return 0
        stats = torch.cuda.memory_stats(device)
        allocated = int(stats.get("allocated_bytes.all.peak", 0))
        # Short of the highest, what is reserved was needed at another time.
        if allocated >= self._highest:
            self._highest = allocated
            held = int(stats.get("reserved_bytes.all.peak", 0)) - allocated
            self._worst = max(self._worst, held)
        return self._worst


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies here: a sharded one says of itself that it is as large as the whole."""
    return getattr(tensor, "_local_tensor", tensor)
