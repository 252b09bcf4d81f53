"""`kv-cache-8-bit`, `kv-cache-window`: a smaller key-value cache for language models.

Both change the cache of transformers, layer by layer, before a layer has stored anything. In 8 bits, each
token's key and value has its own scale per head; a layer's entries are dequantised when used, and freed after
it. With a window, only the last tokens are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .registry import Stage, lever
from .target import CannotApply, Target, Undo

_LEVELS = 127


@lever("kv-cache-8-bit", Stage.MODEL, 30, inference=True)
@lever("kv-cache-window", Stage.MODEL, 40, inference=True)
def apply(_target: Target, value: Any, name: str) -> Undo:
    """Change the cache: `value` is `True` for 8 bits, and the number of tokens for a window."""
    try:
        from transformers import cache_utils
    except ImportError:
        raise CannotApply(
            name, "it changes the key-value cache of transformers, which is not installed"
        ) from None
    layer = getattr(cache_utils, "DynamicLayer", None)
    sliding = getattr(cache_utils, "DynamicSlidingWindowLayer", None)
    if layer is None or sliding is None:
        raise CannotApply(name, "this version of transformers implements its cache differently")
    make: Callable[[], Any] = functools.partial(coded(layer))
    if name == "kv-cache-window":
        if isinstance(value, bool) or not isinstance(value, int) or value < 2:
            raise CannotApply(name, f"the value must be a number of tokens, at least 2, got {value!r}")
        make = functools.partial(sliding, sliding_window=value)
    original = layer.update

    @functools.wraps(original)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) is layer and not self.is_initialized:
            made = make()
            self.__class__ = type(made)
            self.__dict__.clear()
            self.__dict__.update(made.__dict__)
            return self.update(*args, **kwargs)
        return original(self, *args, **kwargs)

    layer.update = update

    def undo() -> None:
        layer.update = original

    return undo


@functools.cache
def coded(layer: Any) -> Any:
    """Return a subclass of this version's cache layer that stores keys and values in 8 bits."""

    class Coded(layer):  # type: ignore[misc]
        def __init__(self) -> None:
            self._parts: list[torch.Tensor] = []
            super().__init__()

        # Reading them returns the original data type.
        @property
        def keys(self) -> Any:
            return self._decoded(0)

        @keys.setter
        def keys(self, _value: Any) -> None:
            self._parts = []

        @property
        def values(self) -> Any:
            return self._decoded(2)

        @values.setter
        def values(self, _value: Any) -> None:
            self._parts = []

        def lazy_initialization(self, key_states: torch.Tensor, _value_states: torch.Tensor) -> None:
            self.dtype, self.device = key_states.dtype, key_states.device
            self._parts = []
            self.is_initialized = True

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            new = [*_encode(key_states), *_encode(value_states)]
            known = self._parts
            self._parts = [torch.cat(pair, dim=-2) for pair in zip(known, new, strict=True)] if known else new
            return self._decoded(0), self._decoded(2)

        def get_seq_length(self) -> int:
            return self._parts[0].shape[-2] if self._parts else 0

        def crop(self, tokens_to_remove: int) -> None:
            length = self.get_seq_length()
            left = tokens_to_remove if tokens_to_remove > 0 else length - abs(tokens_to_remove)
            self._each(lambda part: part[..., : max(left, 0), :])

        def batch_repeat_interleave(self, repeats: int) -> None:
            self._each(lambda part: part.repeat_interleave(repeats, dim=0))

        def batch_select_indices(self, indices: torch.Tensor) -> None:
            self._each(lambda part: part[indices, ...])

        def reorder_cache(self, beam_idx: torch.Tensor) -> None:
            self._each(lambda part: part.index_select(0, beam_idx.to(part.device)))

        def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
            self._parts = [change(part) for part in self._parts]

        def _decoded(self, first: int) -> Any:
            if not self._parts:
                return None
            return self._parts[first].to(self.dtype) * self._parts[first + 1]

    return Coded


def _encode(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = (states.abs().amax(-1, keepdim=True) / _LEVELS).clamp_min(torch.finfo(states.dtype).tiny)
    return (states / scale).round_().to(torch.int8), scale
