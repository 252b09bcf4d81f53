"""Packed optimizer state of a parameter, as stored between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn


class Packing(Protocol):
    """A storage format for optimizer state between steps."""

    def packs(self, name: str, value: torch.Tensor) -> bool:
        """Return `True` if a state tensor of this name is packed."""
        ...

    def pack(self, name: str, value: torch.Tensor, before: Any) -> Any:
        """Pack a flat state tensor; `before` is its previous packed value."""
        ...

    def unpack(self, packed: Any, device: torch.device) -> torch.Tensor:
        """Return the full flat state tensor on a device."""
        ...


@dataclass
class Held:
    """A packed state tensor of one parameter, split as the parameter is split for its update."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    parts: dict[tuple[int, int], Any]

    @property
    def is_cuda(self) -> bool:
        """`True` if it is stored on a GPU, like a tensor's attribute."""
        return any(tensor.is_cuda for tensor in self._tensors())

    @property
    def nbytes(self) -> int:
        """Number of bytes of the packed tensor."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> Iterable[torch.Tensor]:
        for part in self.parts.values():
            yield from [part] if isinstance(part, torch.Tensor) else _tensors(part).values()

    def keep(self) -> Callable[[], None]:
        """Copy all parts to the host; return a function that restores them."""
        copies = [(place, part, _moved(part, torch.device("cpu"))) for place, part in self.parts.items()]
        # A tensor in host memory is restored in place. Other parts are replaced; GPU parts are not kept alive
        # here.
        kept = [
            (place, part if _place(part).type == "cpu" else None, _place(part), copy)
            for place, part, copy in copies
        ]

        def put_back() -> None:
            self.parts = {place: _into(part, copy, device) for place, part, device, copy in kept}

        return put_back


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a packed part that consists of several."""
    return {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}


def _place(part: Any) -> torch.device:
    return part.device if isinstance(part, torch.Tensor) else next(iter(_tensors(part).values())).device


def _moved(part: Any, device: torch.device) -> Any:
    """Copy a packed part to a device."""
    if isinstance(part, torch.Tensor):
        return part.detach().to(device, copy=True)
    return replace(part, **{name: _moved(value, device) for name, value in _tensors(part).items()})


def _into(part: Any, copy: Any, device: torch.device) -> Any:
    """Copy into `part` if it is a tensor; otherwise return a new part on `device`."""
    return part.copy_(copy) if isinstance(part, torch.Tensor) else _moved(copy, device)


def is_flat(tensor: torch.Tensor) -> bool:
    """Return `True` if a tensor's elements fill a contiguous range of memory, in any order of dimensions."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return False
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """View a dense tensor as flat, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
