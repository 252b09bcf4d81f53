"""Packed moments of a parameter: what an optimizer keeps of it between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn


class Packing(Protocol):
    """How moments are kept between steps."""

    def packs(self, name: str, value: torch.Tensor) -> bool:
        """Whether a moment of this name is packed."""
        ...

    def pack(self, name: str, value: torch.Tensor, before: Any) -> Any:
        """A flat moment as it is kept; `before` is what was kept of it last."""
        ...

    def unpack(self, packed: Any, device: torch.device) -> torch.Tensor:
        """The flat moment in full, on a device."""
        ...


@dataclass
class Held:
    """A packed moment of one parameter, in as many parts as the parameter is updated in."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    parts: dict[tuple[int, int], Any]

    @property
    def is_cuda(self) -> bool:
        """Whether it lies on a card, as a tensor says it."""
        return any(tensor.is_cuda for tensor in self._tensors())

    @property
    def nbytes(self) -> int:
        """Bytes that it takes where it lies, packed."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> Iterable[torch.Tensor]:
        for part in self.parts.values():
            yield from [part] if isinstance(part, torch.Tensor) else _tensors(part).values()

    def keep(self) -> Callable[[], None]:
        """Copy all parts to the host; what is returned puts them back."""
        copies = [(place, part, _moved(part, torch.device("cpu"))) for place, part in self.parts.items()]
        # A part that waits on the host is written to where it is; others are replaced, and are not kept alive
        # here.
        kept = [
            (place, part if _place(part).type == "cpu" else None, _place(part), copy)
            for place, part, copy in copies
        ]

        def put_back() -> None:
            self.parts = {place: _into(part, copy, device) for place, part, device, copy in kept}

        return put_back


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    """The tensors of a packed part that has several."""
    return {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}


def _place(part: Any) -> torch.device:
    return part.device if isinstance(part, torch.Tensor) else next(iter(_tensors(part).values())).device


def _moved(part: Any, device: torch.device) -> Any:
    """A copy of a packed part on a device."""
    if isinstance(part, torch.Tensor):
        return part.detach().to(device, copy=True)
    return replace(part, **{name: _moved(value, device) for name, value in _tensors(part).items()})


def _into(part: Any, copy: Any, device: torch.device) -> Any:
    """What was copied, in the part that it was copied from where that is still there."""
    return part.copy_(copy) if isinstance(part, torch.Tensor) else _moved(copy, device)


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether each number has a place of its own and no place is empty, in whatever order."""
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
    """A dense tensor in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
