"""Random number generators, saved for each window so that a failed one can draw the same numbers again."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from typing import Any

import torch

# Number of windows in which NumPy's generator state is always saved, even if the model never draws from it.
_LEARNING_WINDOWS = 2


class RandomState:
    """The state of all random number generators."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()
        self._host = torch.get_rng_state()
        self._devices = _device_states(devices)

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

    Asking Python and NumPy for the state of their generators takes longer than everything else that a window
    saves, and few models draw from them in their forward pass. The generators' raw memory is copied instead,
    and restored if it changed. NumPy's generator has more state than that, which is saved once it was seen
    to draw.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._python_memory = _python_memory()
        self._windows = 0
        self._numpy_draws = False
        self._is_kept = False
        # Python's generator: its full state, or its memory with the second number of a pair of Gaussian ones.
        self._python: Any = None
        self._python_before: bytes | None = None
        self._gaussian: float | None = None
        # NumPy's generator: its full state if it was asked for, and its memory.
        self._numpy: Any = None
        self._numpy_before: bytes | None = None
        self._host: torch.Tensor | None = None
        self._cuda: dict[int, torch.Tensor] = {}

    def keep(self) -> None:
        """Save the state."""
        self._is_kept = True
        self._windows += 1
        if self._python_memory is not None:
            self._python_before, self._gaussian = self._python_memory.raw, _PYTHON.gauss_next
        else:
            self._python = random.getstate()
        memory = _numpy_memory()
        self._numpy_before = memory.raw if memory is not None else None
        if memory is None or self._numpy_draws or self._windows <= _LEARNING_WINDOWS:
            self._numpy = _numpy_state()
        self._host = torch.default_generator.get_state()
        if self._devices:
            self._cuda = _device_states(self._devices)

    def restore(self) -> None:
        """Restore the saved state."""
        if not self._is_kept or self._host is None:
            return
        if self._python_before is not None:
            position, *words = struct.unpack(_TWISTER, self._python_before)
            random.setstate((_PYTHON.VERSION, (*words, position), self._gaussian))
        else:
            random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        elif self._numpy_changed():
            self._numpy_draws = True
            numpy = sys.modules["numpy"]
            *words, position = struct.unpack(_TWISTER, self._numpy_before or b"")
            name, _, _, *normal = numpy.random.get_state()
            numpy.random.set_state((name, numpy.array(words, numpy.uint32), position, *normal))
        torch.set_rng_state(self._host)
        for index, state in self._cuda.items():
            torch.cuda.set_rng_state(state, index)

    def settle(self) -> None:
        """End the window."""
        if not self._numpy_draws and self._numpy_changed():
            self._numpy_draws = True
        self._is_kept, self._python, self._numpy = False, None, None

    def _numpy_changed(self) -> bool:
        memory = _numpy_memory()
        return memory is not None and self._numpy_before is not None and memory.raw != self._numpy_before


# The memory of a Mersenne Twister: 624 words and the position in them, which is first in Python's.
_TWISTER = "625I"
_Memory = ctypes.c_char * struct.calcsize(_TWISTER)
# The generator behind the functions of `random`.
_PYTHON: Any = random._inst  # type: ignore[attr-defined]


@functools.cache
def _python_memory() -> Any:
    """Return the memory of Python's global generator; `None` if its layout is not the known one."""
    start, kind = object.__basicsize__, random.Random.__base__
    if sys.implementation.name != "cpython" or kind is None or type(_PYTHON) is not random.Random:
        return None
    if kind.__basicsize__ < start + ctypes.sizeof(_Memory):
        return None
    memory = _Memory.from_address(id(_PYTHON) + start)
    position, *words = struct.unpack(_TWISTER, memory.raw)
    return memory if random.getstate()[1] == (*words, position) else None


# NumPy's global generator and its memory, since asking for it takes longer than reading it.
_numpy_known: list[Any] = [None, None]


def _numpy_memory() -> Any:
    """Return the memory of NumPy's global generator if it is a Mersenne Twister."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    bits: Any = getattr(getattr(numpy.random.mtrand, "_rand", None), "_bit_generator", None)
    if _numpy_known[0] is not bits:
        is_twister = type(bits).__name__ == "MT19937"
        _numpy_known[:] = bits, _Memory.from_address(bits.ctypes.state_address) if is_twister else None
    return _numpy_known[1]


def _numpy_state() -> Any:
    module = sys.modules.get("numpy")
    return module.random.get_state() if module is not None else None


def _device_states(devices: list[torch.device]) -> dict[int, torch.Tensor]:
    return {
        device.index or 0: torch.cuda.get_rng_state(device)
        for device in devices
        if device.type == "cuda" and torch.cuda.is_initialized()
    }


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
