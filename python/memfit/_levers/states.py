"""`8-bit-optimizer`, `bf16-optimizer-state`, `host-optimizer-state`: optimizer state packed between steps.

Each update unpacks the state of a few parameters and packs it again, so little of it exists in full.
Checkpoints store the state in full, so they can be loaded with or without the lever.
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

# Minimum number of elements. Smaller state takes little memory, and its accuracy matters: biases, norms.
_MIN_ELEMENTS = 4096


class EightBit:
    """Block-wise 8-bit quantisation."""

    def packs(self, name: str, value: torch.Tensor) -> bool:  # noqa: ARG002
        # State in bf16 takes twice as much as 8-bit codes.
        return value.numel() >= _MIN_ELEMENTS and value.dtype.is_floating_point

    def pack(self, name: str, value: torch.Tensor, before: Any) -> Coded:  # noqa: ARG002
        # Second moments are not negative, which saves the sign bit.
        squares = name.endswith(("_sq", "square_avg", "sum")) or name == "exp_inf"
        return encode(value, "unsigned8" if squares else "signed8")

    def unpack(self, packed: Coded, device: torch.device) -> torch.Tensor:
        full = decode(packed)
        return full if full.device == device else full.to(device)


class Halved:
    """bf16 with stochastic rounding."""

    def __init__(self) -> None:
        self._round = Rounding()

    def packs(self, name: str, value: torch.Tensor) -> bool:  # noqa: ARG002
        return value.numel() >= _MIN_ELEMENTS and value.dtype == torch.float32

    def pack(self, name: str, value: torch.Tensor, before: Any) -> torch.Tensor:  # noqa: ARG002
        # State that is bf16 already is kept unchanged.
        return self._round(value) if value.dtype == torch.float32 else value

    def unpack(self, packed: torch.Tensor, device: torch.device) -> torch.Tensor:
        return packed.to(device, torch.float32)


class OnHost:
    """Pinned host memory."""

    def packs(self, name: str, value: torch.Tensor) -> bool:  # noqa: ARG002
        return value.numel() >= _MIN_ELEMENTS and value.device.type != "cpu"

    def pack(self, name: str, value: torch.Tensor, before: Any) -> torch.Tensor:  # noqa: ARG002
        place: torch.Tensor = (
            before if before is not None else torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        )
        # On the computing stream, whose next update reads them back: in order, without synchronisation.
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
    """Pack the optimizer state; `value` is `True`."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    if name == "host-optimizer-state" and target.place().type == "cpu":
        target.note("the optimizer state is in host memory already, so this has no effect on this device")
        return lambda: None
    return all_or_none(_one(optimizer, name, _PACKINGS[name]()) for optimizer in target.optimizers)


def _one(optimizer: torch.optim.Optimizer, name: str, packing: Packing) -> Undo:
    pieces, undo = take_over(optimizer, name)
    if not pieces.elementwise and name != "host-optimizer-state":
        undo()
        raise CannotApply(
            name,
            (
                f"{type(optimizer).__name__} is not known to update each element independently, so its state "
                "cannot be packed; AdamW and SGD are supported"
            ),
        )
    # Another lever may have packed the state in its own way, which is restored when this lever is undone.
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
