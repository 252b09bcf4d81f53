"""Failures: what they are, and letting go of what they hold."""

from __future__ import annotations

import contextlib
import gc
import traceback
from dataclasses import dataclass

import torch

from memfit import _core

from .device import room


class MemfitError(RuntimeError):
    """What `memfit.Step` raises when it cannot go on."""


class StepDoesNotFit(MemfitError):  # noqa: N818
    """A single sample does not fit. Everything is as it was before the step."""


class StepInvalid(MemfitError):  # noqa: N818
    """The optimizer's step failed half-way: parameters or states are not to be trained on."""


@dataclass(frozen=True)
class Fault:
    """An exception in words: nothing of it holds a frame or a tensor."""

    types: list[str]
    message: str
    free: int
    capacity: int
    # What tensors took then.
    live: int = 0

    @property
    def kind(self) -> str:
        """ "device", "host", "sticky" or "other"."""
        return _core.Controller.judge(self.types, self.message, self.free, self.capacity)

    @classmethod
    def of(cls, error: BaseException, device: torch.device) -> Fault:
        """What an exception says."""
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        free, capacity = room(device)
        live = torch.cuda.memory_allocated(device) if device.type == "cuda" and capacity else 0
        return cls(names, str(error), free, capacity, int(live))


def is_memory(error: BaseException, device: torch.device) -> bool:
    """Whether an exception means that memory did not suffice, in whichever words."""
    return Fault.of(error, device).kind in ("device", "host")


def forget(error: BaseException | None) -> None:
    """Empty the frames that an exception went through: their locals hold the failed step's tensors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            # Our own frames are still running, and are left alone.
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
        error = error.__cause__ or error.__context__


def collect(device: torch.device) -> None:
    """Give back what nobody holds any more. Only of use after the exception is gone."""
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
