"""Where a model computes, and what memory there is."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

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


def budget(device: torch.device, reserved: int) -> int | None:
    """What the allocator may come to, which has taken so much; nothing is known of the host's."""
    if device.type != "cuda":
        return None
    free, capacity = room(device)
    most = free + reserved - int(capacity * _MARGIN)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    if fraction is not None:
        with contextlib.suppress(RuntimeError):
            most = min(most, int(capacity * float(fraction(device))))
    return max(most, 0)


class Seen(NamedTuple):
    """What an allocator has, in bytes."""

    allocated: int
    reserved: int
    flushes: int
    """How often it gave back all that it could and asked again."""


class Meter:
    """What the allocator of one device has, and how much of it was there before a window."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        # What tensors took before the window.
        self.base = 0
        # What was reserved then, with nothing cached, and lay in no tensor: segments that are kept by a block
        # in use.
        self._pinned = 0
        self._flushes = 0

    def look(self) -> Seen:
        """What there is now. One look tells all: the allocator's books are long, and each look copies
        them.
        """
        if not self.cuda or not torch.cuda.is_initialized():
            return Seen(0, 0, 0)
        books = torch.cuda.memory_stats_as_nested_dict(self.device)
        allocated, reserved = books.get("allocated_bytes"), books.get("reserved_bytes")
        if not allocated or not reserved:
            return Seen(0, 0, 0)
        return Seen(
            allocated["all"]["current"], reserved["all"]["current"], books.get("num_alloc_retries", 0)
        )

    def begin(self) -> None:
        """A window begins."""
        if self.cuda:
            self.base = self.look().allocated

    def empty(self, between: bool) -> None:
        """Give back what the allocator has cached; `between` windows, what stays tells what is in the way."""
        torch.cuda.empty_cache()
        seen = self.look()
        if between:
            self._pinned = max(seen.reserved - seen.allocated, 0)
        self._flushes = seen.flushes

    @property
    def floor(self) -> int:
        """What is reserved before a window's first part, with nothing cached."""
        return self.base + self._pinned

    def space(self) -> tuple[int, int] | None:
        """What a part may need beyond what was there before the window, and what is reserved and in no tensor
        now.
        """
        seen = self.look()
        most = budget(self.device, seen.reserved)
        return None if most is None else (max(most - self.floor, 0), max(seen.reserved - seen.allocated, 0))

    def budget(self) -> int | None:
        """What the allocator may come to."""
        return budget(self.device, self.look().reserved)

    def need(self) -> tuple[int | None, int]:
        """What the allocator has taken since the cache was emptied, beyond what was there before the window,
        and what of it is in tensors still.
        """
        seen = self.look()
        if not seen.reserved:
            return None, 0
        need = seen.reserved - self.floor
        if seen.flushes > self._flushes:
            # It met the end of the memory and went on: all of it was needed.
            need = max(need, (budget(self.device, seen.reserved) or 0) - self.floor)
        return max(need, 0), max(seen.allocated - self.base, 0)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies here: a sharded one says of itself that it is as large as the whole."""
    return getattr(tensor, "_local_tensor", tensor)
