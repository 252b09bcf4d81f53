"""Random number generators, kept from window to window so that a failed one draws the same again."""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import torch

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

    def host_drew(self) -> bool:
        """Whether Python's or NumPy's generator has moved since."""
        if random.getstate() != self._python:
            return True
        module = sys.modules.get("numpy")
        if module is None or self._numpy is None:
            return False
        now = module.random.get_state()
        return bool(now[2:] != self._numpy[2:] or (now[1] != self._numpy[1]).any())

    def state_dict(self) -> dict[str, Any]:
        """As something that `torch.load` reads with `weights_only=True`."""
        state = self._numpy
        # Of NumPy's arrays, `torch.load` takes tensors only.
        numbers = (
            None if state is None else (state[0], torch.tensor([int(each) for each in state[1]]), *state[2:])
        )
        return {"python": self._python, "numpy": numbers, "host": self._host, "devices": self._devices}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RandomState:
        """From what `state_dict` gave."""
        made = cls.__new__(cls)
        made._python, made._host, made._devices = state["python"], state["host"], state["devices"]
        numbers = state["numpy"]
        if numbers is not None and isinstance(numbers[1], torch.Tensor):
            numbers = (numbers[0], numbers[1].numpy().astype("uint32"), *numbers[2:])
        made._numpy = numbers
        return made


class Numbers:
    """The random number generators from window to window.

    Asking NumPy for its generator's state takes longer than all else that a window keeps, and few models draw
    from it in their forward: as long as none was seen to, the generator's own memory is copied, and put back
    should one begin to.
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


def is_generator(value: Any) -> bool:
    """`True` for a random number generator of PyTorch, NumPy or Python."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds = (*kinds, numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, kinds)


def is_default_generator(generator: Any) -> bool:
    """`True` for the generators that PyTorch draws from where none is named."""
    if generator is torch.default_generator:
        return True
    return torch.cuda.is_initialized() and any(generator is each for each in torch.cuda.default_generators)


def generator_state(generator: Any) -> Any:
    """A generator's state, as `set_generator_state` takes it."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Put a generator back to a state of its own."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
