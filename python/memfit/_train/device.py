"""The device a model runs on, and its memory."""

from __future__ import annotations

import contextlib
import sys
from typing import NamedTuple

import torch
from torch import nn

# Share of the device's memory that is reserved for fragmentation and other allocations.
_MARGIN_SHARE = 0.03


def device_of(model: nn.Module, device: torch.device | str | None) -> tuple[torch.device, bool]:
    """Return the device the model runs on, and `True` if batches have to be moved there."""
    if device is not None:
        return torch.device(device), True
    places = {parameter.device for parameter in model.parameters()}
    if len(places) == 1:
        return next(iter(places)), True
    # A model on several devices moves its inputs itself.
    cuda = sorted((place for place in places if place.type == "cuda"), key=lambda place: place.index or 0)
    return (cuda[0] if cuda else torch.device("cpu")), not places


def computes() -> bool:
    """Return `True` if operations compute values; on a virtual GPU they do not."""
    session = getattr(sys.modules.get("memfit_probe.session"), "_session", None)
    return not getattr(session, "virtual", False)


def room(device: torch.device) -> tuple[int, int]:
    """Return the free and total bytes of a device, or zeros for the host."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            free, capacity = torch.cuda.mem_get_info(device)
            return int(free), int(capacity)
    return 0, 0


def budget(device: torch.device, reserved: int) -> int | None:
    """Return the bytes that the allocator may reserve in total, given what it has reserved; `None` on the
    host.
    """
    if device.type != "cuda":
        return None
    free, capacity = room(device)
    most = free + reserved - int(capacity * _MARGIN_SHARE)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    if fraction is not None:
        with contextlib.suppress(RuntimeError):
            most = min(most, int(capacity * float(fraction(device))))
    return max(most, 0)


class Seen(NamedTuple):
    """The state of an allocator, in bytes."""

    allocated: int
    reserved: int
    flushes: int
    """Number of times that it emptied its cache and retried an allocation."""


class Meter:
    """Measures the allocator of one device relative to the state before a window."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        # Bytes in tensors before the window.
        self.base = 0
        self._flushes = 0

    def look(self) -> Seen:
        """Return the allocator's current state. One call returns all of it, because each call copies all
        statistics.
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
        """Record the state at the begin of a window."""
        if self.cuda:
            self.base = self.look().allocated

    def empty(self) -> None:
        """Empty the allocator's cache."""
        torch.cuda.empty_cache()
        self._flushes = self.look().flushes

    def space(self) -> tuple[int, int] | None:
        """Return the bytes that a micro-batch may need beyond the state before the window, and the bytes that
        are reserved but unused now. `None` on the host.
        """
        if not self.cuda:
            return None
        seen = self.look()
        most = budget(self.device, seen.reserved)
        return None if most is None else (max(most - self.base, 0), max(seen.reserved - seen.allocated, 0))

    def budget(self) -> int | None:
        """Return the bytes that the allocator may reserve in total."""
        return budget(self.device, self.look().reserved)

    def need(self) -> tuple[int | None, int]:
        """Return the bytes reserved after the cache was emptied and a micro-batch ran, beyond the tensors
        before the window, and the bytes of these that are still in tensors.

        Segments that a live block keeps from being freed count in full: the micro-batch may have used their
        rest, so that without them a larger one would seem to need less than it does.
        """
        seen = self.look()
        if not seen.reserved:
            return None, 0
        need = seen.reserved - self.base
        if seen.flushes > self._flushes:
            # The allocator hit the limit and retried: it needed all of the memory.
            need = max(need, (budget(self.device, seen.reserved) or 0) - self.base)
        return max(need, 0), max(seen.allocated - self.base, 0)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a tensor; a sharded tensor reports the size of the whole."""
    return getattr(tensor, "_local_tensor", tensor)
