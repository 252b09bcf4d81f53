"""`8-bit-optimizer`, `bf16-optimizer-state`, `host-optimizer-state`: an optimizer's moments, packed between
steps.

Each update unpacks the moments of a few parameters, and packs them again: what is there in full is small.
What is saved in a checkpoint is in full, so it can be loaded with the lever or without.
"""

from __future__ import annotations

from typing import Any

import torch

from .codes import Coded, decode, encode
from .held import Packing
from .pieces import Pieces, take_over
from .registry import Stage, lever
from .rounding import Rounding
from .target import CannotApply, Target, Undo
from .wrapping import all_or_none

# Smaller moments take no room, and are the ones that hurt: biases, norms.
_LEAST = 4096


class EightBit:
    """Blocks of codes with a scale each."""

    def packs(self, name: str, value: torch.Tensor) -> bool:  # noqa: ARG002
        # Moments of parameters in bf16 are in bf16, which is twice as much as codes.
        return value.numel() >= _LEAST and value.dtype.is_floating_point

    def pack(self, name: str, value: torch.Tensor, before: Any) -> Coded:  # noqa: ARG002
        # Second moments have no sign, and get a bit more for it.
        squares = name.endswith(("_sq", "square_avg", "sum")) or name == "exp_inf"
        return encode(value, "unsigned8" if squares else "signed8")

    def unpack(self, packed: Coded, device: torch.device) -> torch.Tensor:
        full = decode(packed)
        return full if full.device == device else full.to(device)


class Halved:
    """bf16, rounded up or down by chance."""

    def __init__(self) -> None:
        self._round = Rounding()

    def packs(self, name: str, value: torch.Tensor) -> bool:  # noqa: ARG002
        return value.numel() >= _LEAST and value.dtype == torch.float32

    def pack(self, name: str, value: torch.Tensor, before: Any) -> torch.Tensor:  # noqa: ARG002
        # A piece of a moment that is narrow already is kept as it is.
        return self._round(value) if value.dtype == torch.float32 else value

    def unpack(self, packed: torch.Tensor, device: torch.device) -> torch.Tensor:
        return packed.to(device, torch.float32)


class OnHost:
    """The host's memory, pinned."""

    def packs(self, name: str, value: torch.Tensor) -> bool:  # noqa: ARG002
        return value.numel() >= _LEAST and value.device.type != "cpu"

    def pack(self, name: str, value: torch.Tensor, before: Any) -> torch.Tensor:  # noqa: ARG002
        place: torch.Tensor = (
            before if before is not None else torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        )
        # On the computing stream, whose next update of these numbers reads them back: in order without
        # waiting.
        return place.copy_(value, non_blocking=True)

    def unpack(self, packed: torch.Tensor, device: torch.device) -> torch.Tensor:
        return packed.to(device, non_blocking=device.type != "cpu")


_PACKINGS: dict[str, type[Any]] = {
    "8-bit-optimizer": EightBit,
    "bf16-optimizer-state": Halved,
    "host-optimizer-state": OnHost,
}


@lever("8-bit-optimizer", Stage.OPTIMIZER, 40)
@lever("bf16-optimizer-state", Stage.OPTIMIZER, 50)
@lever("host-optimizer-state", Stage.OPTIMIZER, 60)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Pack moments; its value is true."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    if name == "host-optimizer-state" and target.place().type == "cpu":
        target.note("the optimizer's state is in the host's memory already, so nothing moves on this device")
        return lambda: None
    return all_or_none(_one(optimizer, name, _PACKINGS[name]()) for optimizer in target.optimizers)


def _one(optimizer: torch.optim.Optimizer, name: str, packing: Packing) -> Undo:
    pieces, undo = take_over(optimizer, name)
    if not pieces.elementwise and name != "host-optimizer-state":
        undo()
        raise CannotApply(
            name, f"{type(optimizer).__name__}'s moments are not known to bear it; AdamW's and SGD's are"
        )
    # Another lever may have packed them in its own way, which comes back when this one goes.
    before = pieces.packing
    _repack(pieces, packing)

    def back() -> None:
        _repack(pieces, before)
        undo()

    return back


def _repack(pieces: Pieces, packing: Packing | None) -> None:
    pieces.unpack_all()
    pieces.packing = packing
    if packing is not None:
        pieces.pack_all()
