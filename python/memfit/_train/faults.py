"""Errors: their classification, and freeing the memory that they hold."""

from __future__ import annotations

import contextlib
import gc
import traceback
from dataclasses import dataclass

import torch

from memfit import _core

from .._errors import MemfitError
from .device import room


class StepDoesNotFit(MemfitError):  # noqa: N818
    """The step does not fit into memory. All state is as it was before the step."""


class StepInvalid(MemfitError):  # noqa: N818
    """The optimizer failed in the middle of its step: parameters or optimizer state are inconsistent."""


@dataclass(frozen=True)
class Fault:
    """An exception reduced to text and numbers, so that it references no frames or tensors."""

    types: list[str]
    message: str
    free: int
    capacity: int
    # Bytes in tensors at that time.
    live: int = 0

    @property
    def kind(self) -> str:
        """The classification: "device", "host", "sticky" or "other"."""
        return _core.Controller.judge(self.types, self.message, self.free, self.capacity)

    @classmethod
    def from_error(cls, error: BaseException, device: torch.device) -> Fault:
        """Read an exception."""
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        free, capacity = room(device)
        live = torch.cuda.memory_allocated(device) if device.type == "cuda" and capacity else 0
        return cls(names, str(error), free, capacity, int(live))


def is_memory(error: BaseException, device: torch.device) -> bool:
    """Return `True` if an exception means that memory ran out, whatever its message."""
    return Fault.from_error(error, device).kind in ("device", "host")


def forget(error: BaseException | None) -> None:
    """Clear the frames of an exception: their local variables hold the failed step's tensors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            # memfit's own frames are still running and are left alone.
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
        error = error.__cause__ or error.__context__


def collect(device: torch.device) -> None:
    """Free unreferenced memory. Only useful once the exception is gone."""
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
