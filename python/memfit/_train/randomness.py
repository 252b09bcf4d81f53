"""Random number generators, saved for each window so that a failed one can draw the same numbers again."""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import torch

# Number of windows in which NumPy's generator state is always saved, even if the model never draws from it.
_LEARNING_WINDOWS = 2


class RandomState:
    """The state of all random number generators."""

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
        """Restore the state."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        for index, state in self._devices.items():
            torch.cuda.set_rng_state(state, index)

    def host_drew(self) -> bool:
        """Return `True` if Python's or NumPy's generator was used since."""
        if random.getstate() != self._python:
            return True
        module = sys.modules.get("numpy")
        if module is None or self._numpy is None:
            return False
        now = module.random.get_state()
        return bool(now[2:] != self._numpy[2:] or (now[1] != self._numpy[1]).any())

    def state_dict(self) -> dict[str, Any]:
        """Return the state in a form that `torch.load` reads with `weights_only=True`."""
        state = self._numpy
        # `torch.load` accepts tensors, but no NumPy arrays.
        numbers = (
            None if state is None else (state[0], torch.tensor([int(each) for each in state[1]]), *state[2:])
        )
        return {"python": self._python, "numpy": numbers, "host": self._host, "devices": self._devices}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RandomState:
        """Create the state from the result of `state_dict`."""
        made = cls.__new__(cls)
        made._python, made._host, made._devices = state["python"], state["host"], state["devices"]
        numbers = state["numpy"]
        if numbers is not None and isinstance(numbers[1], torch.Tensor):
            numbers = (numbers[0], numbers[1].numpy().astype("uint32"), *numbers[2:])
        made._numpy = numbers
        return made


class Numbers:
    """The random number generators, saved for each window.

    Asking NumPy for its generator's state takes longer than everything else that a window saves, and few
    models draw from it in their forward pass. Until one is seen to, the generator's raw memory is copied
    instead, and restored if it changed.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device]
        self._windows = 0
        self._numpy_draws = False
        self._state: RandomState | None = None
        self._before: bytes | None = None

    def keep(self) -> None:
        """Save the state."""
        self._windows += 1
        asks = self._numpy_draws or self._windows <= _LEARNING_WINDOWS
        self._before = _numpy_memory()
        self._state = RandomState(self._devices, numpy=asks or self._before is None)

    def restore(self) -> None:
        """Restore the saved state."""
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
        """End the window."""
        if not self._numpy_draws and self._before is not None and _numpy_memory() != self._before:
            self._numpy_draws = True
        self._state = None


# NumPy's global generator and the address of its memory, since asking for it takes longer than reading it.
_twister: list[Any] = [None, 0]


def _numpy_memory() -> bytes | None:
    """Return the memory of NumPy's global generator if it is a Mersenne Twister: 624 words and the position
    in them.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    bits: Any = getattr(getattr(numpy.random.mtrand, "_rand", None), "_bit_generator", None)
    if type(bits).__name__ != "MT19937":
        return None
    if _twister[0] is not bits:
        _twister[:] = bits, bits.ctypes.state_address
    return ctypes.string_at(_twister[1], 4 * 625)


def is_generator(value: Any) -> bool:
    """Return `True` for a random number generator of PyTorch, NumPy or Python."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds = (*kinds, numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, kinds)


def is_default_generator(generator: Any) -> bool:
    """Return `True` for the generators that PyTorch uses by default."""
    if generator is torch.default_generator:
        return True
    return torch.cuda.is_initialized() and any(generator is each for each in torch.cuda.default_generators)


def generator_state(generator: Any) -> Any:
    """Return a generator's state for `set_generator_state`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore a generator to a state from `generator_state`."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
