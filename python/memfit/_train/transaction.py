"""The state that a step changes before its optimizer does, kept so that a failed step leaves no trace."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import nn

from .faults import is_memory

# Buffers together larger than this wait on the host.
_LARGE = 64 << 20
# Windows after which a model is looked at again.
_AGAIN = 64


class RandomState:
    """Where all random number generators are."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._host = torch.get_rng_state()
        self._devices = {
            device.index or 0: torch.cuda.get_rng_state(device)
            for device in devices
            if device.type == "cuda" and torch.cuda.is_initialized()
        }

    def restore(self) -> None:
        """Put them back there."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        for index, state in self._devices.items():
            torch.cuda.set_rng_state(state, index)

    def state_dict(self) -> dict[str, Any]:
        """As something that `torch.save` takes."""
        return {"python": self._python, "numpy": self._numpy, "host": self._host, "devices": self._devices}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RandomState:
        """From what `state_dict` gave."""
        made = cls.__new__(cls)
        made._python, made._numpy = state["python"], state["numpy"]
        made._host, made._devices = state["host"], state["devices"]
        return made


class Buffers:
    """A module's buffers: running statistics and the like, which a forward may write to.

    In the first window all are copied. From then on only those that were ever seen to change, since copies take time.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._homes: list[tuple[str, nn.Module]] = []
        self._windows = 0
        self._changing: set[str] | None = None
        self._copies: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}

    def keep(self) -> None:
        """Remember the buffers as they are now."""
        # Walking a model takes longer than a window's other books: its modules are looked at again now and then.
        if self._windows < 2 or self._windows % _AGAIN == 0:
            self._homes = [
                (f"{name}." if name else "", module)
                for name, module in self._model.named_modules()
                if module._buffers
            ]
        self._windows += 1
        named = self._named()
        kept = named if self._changing is None else {k: v for k, v in named.items() if k in self._changing}
        with torch.no_grad():
            if sum(buffer.nbytes for buffer in kept.values()) > _LARGE:
                self._copies = _on_host(kept)
            else:
                try:
                    self._copies = {name: buffer.clone() for name, buffer in kept.items()}
                except RuntimeError as error:
                    if not is_memory(error, next(iter(kept.values())).device):
                        raise
                    self._copies = _on_host(kept)
        self._versions = {name: buffer._version for name, buffer in named.items()}

    def _named(self) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}{name}": buffer
            for prefix, module in self._homes
            for name, buffer in module._buffers.items()
            if buffer is not None
        }

    def restore(self) -> None:
        """Write back what was kept."""
        with torch.no_grad():
            for name, buffer in self._named().items():
                if name in self._copies:
                    buffer.copy_(self._copies[name])

    def settle(self) -> set[str]:
        """The window is over; the names of the buffers that ever changed."""
        named = self._named()
        changed = {name for name, buffer in named.items() if buffer._version != self._versions.get(name)}
        if self._changing is None:
            # Batch normalisation writes its statistics without a new version, so all are compared once.
            changed |= {
                name for name, copy in self._copies.items() if name in named and not _same(copy, named[name])
            }
        self._changing = changed if self._changing is None else self._changing | changed
        self._copies = {}
        return self._changing


def _same(copy: torch.Tensor, now: torch.Tensor) -> bool:
    try:
        return torch.equal(copy, now.to(copy.device))
    except RuntimeError as error:
        if not is_memory(error, now.device):
            raise
        # The step is done, and nothing fits beside it: taken to have changed.
        return False


def _on_host(kept: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: buffer.to("cpu", copy=True) for name, buffer in kept.items()}
