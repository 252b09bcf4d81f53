"""The state that a step changes before its optimizer does, kept so that a failed step leaves no trace."""

from __future__ import annotations

import ctypes
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
# Windows in which NumPy's generator is asked for its state, whether or not a model draws from it.
_LEARNS = 2


class RandomState:
    """Where all random number generators are."""

    def __init__(self, devices: list[torch.device], numpy: bool = True) -> None:
        self._python = random.getstate()
        module = sys.modules.get("numpy") if numpy else None
        self._numpy = module.random.get_state() if module is not None else None
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


class Numbers:
    """The random number generators from window to window.

    Asking NumPy for its generator's state takes longer than all else that a window keeps, and few models draw from it in
    their forward: as long as none was seen to, the generator's own memory is copied, and put back should one begin to.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device]
        self._windows = 0
        self._numpy_draws = False
        self._state: RandomState | None = None
        self._before: bytes | None = None

    def keep(self) -> None:
        """Remember where they are."""
        self._windows += 1
        asks = self._numpy_draws or self._windows <= _LEARNS
        self._before = _numpy_memory()
        self._state = RandomState(self._devices, numpy=asks or self._before is None)

    def restore(self) -> None:
        """Put them back there."""
        if self._state is None:
            return
        self._state.restore()
        if self._before is not None and self._state._numpy is None and _numpy_memory() != self._before:
            self._numpy_draws = True
            numpy = sys.modules["numpy"]
            name, _, _, *normal = numpy.random.get_state()
            key = numpy.frombuffer(self._before[:-4], dtype=numpy.uint32)
            numpy.random.set_state((name, key, int.from_bytes(self._before[-4:], sys.byteorder), *normal))

    def settle(self) -> None:
        """The window is over."""
        if not self._numpy_draws and self._before is not None and _numpy_memory() != self._before:
            self._numpy_draws = True
        self._state = None


def _numpy_memory() -> bytes | None:
    """The memory of NumPy's global generator, where it is the usual one: 624 words, and the place in them."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    bits: Any = getattr(getattr(numpy.random.mtrand, "_rand", None), "_bit_generator", None)
    if type(bits).__name__ != "MT19937":
        return None
    return ctypes.string_at(bits.ctypes.state_address, 4 * 625)


class Buffers:
    """A module's buffers: running statistics and the like, which a forward may write to.

    In the first window all are copied. From then on only those that were ever seen to change, since copies take time.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # Each buffer's name, its module's table of buffers, and its name there.
        self._homes: list[tuple[str, dict[str, Any], str]] = []
        self._windows = 0
        self._changing: set[str] | None = None
        self._copies: dict[str, torch.Tensor] = {}
        # Those that were never seen to change, as they were before the window.
        self._still: list[tuple[str, dict[str, Any], str, torch.Tensor, int]] = []

    def keep(self) -> None:
        """Remember the buffers as they are now."""
        # Walking a model takes longer than a window's other books: its modules are looked at again now and then.
        if self._windows < 2 or self._windows % _AGAIN == 0:
            self._homes = [
                (f"{path}.{name}" if path else name, module._buffers, name)
                for path, module in self._model.named_modules()
                for name in module._buffers
            ]
        self._windows += 1
        if not self._homes:
            return
        changing = self._changing
        kept, self._still = {}, []
        for path, home, name in self._homes:
            buffer = home.get(name)
            if buffer is None:
                continue
            if changing is None or path in changing:
                kept[path] = buffer
            if changing is None or path not in changing:
                self._still.append((path, home, name, buffer, buffer._version))
        if kept:
            self._copy(kept)

    def _copy(self, kept: dict[str, torch.Tensor]) -> None:
        known = self._copies
        alike = list(known) == list(kept) and all(
            copy.shape == buffer.shape and copy.dtype == buffer.dtype and copy.device == buffer.device
            for copy, buffer in zip(known.values(), kept.values(), strict=True)
        )
        with torch.no_grad():
            if not alike and sum(buffer.nbytes for buffer in kept.values()) > _LARGE:
                self._copies = _on_host(kept)
                return
            try:
                if alike:
                    torch._foreach_copy_(list(known.values()), list(kept.values()))
                else:
                    self._copies = {name: buffer.clone() for name, buffer in kept.items()}
            except RuntimeError as error:
                if not is_memory(error, next(iter(kept.values())).device):
                    raise
                self._copies = _on_host(kept)

    def restore(self) -> None:
        """Write back what was kept."""
        with torch.no_grad():
            for path, home, name in self._homes:
                if path in self._copies and home.get(name) is not None:
                    home[name].copy_(self._copies[path])

    def settle(self) -> set[str]:
        """The window is over; the names of the buffers that ever changed."""
        changed = {
            path
            for path, home, name, buffer, version in self._still
            if buffer._version != version or home.get(name) is not buffer
        }
        if self._changing is None:
            # Batch normalisation writes its statistics without a new version, so all are compared once.
            changed |= {
                path
                for path, home, name in self._homes
                if path in self._copies
                and home.get(name) is not None
                and not _same(self._copies[path], home[name])
            }
            self._changing = set()
            self._copies = {path: copy for path, copy in self._copies.items() if path in changed}
        if changed:
            self._changing |= changed
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
