"""Image loading for training: reduced-scale decoding, a byte budget, pinned batches, and exact resumption.

Importing this does not import torch: modules that need it are loaded on first use.
"""

from __future__ import annotations

# Defined as in `typing`, which takes longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memfit._core import ImageError
    from memfit.data._augment import Augment
    from memfit.data._decode import Decoded, decode
    from memfit.data._device import ColorJitter, Normalize
    from memfit.data._facade import ImageBatches
    from memfit.data._geometry import move_boxes, move_mask, move_points
    from memfit.data._loader import ImageLoader
    from memfit.data._mix import CutMix, MixUp
    from memfit.data._tiles import Tile, Tiles
    from memfit.data._volume import Volume

__all__ = [
    "Augment",
    "ColorJitter",
    "CutMix",
    "Decoded",
    "ImageBatches",
    "ImageError",
    "ImageLoader",
    "MixUp",
    "Normalize",
    "Tile",
    "Tiles",
    "Volume",
    "decode",
    "jpeg_decoder",
    "move_boxes",
    "move_mask",
    "move_points",
]

_HOMES = {
    "Augment": "memfit.data._augment",
    "ColorJitter": "memfit.data._device",
    "CutMix": "memfit.data._mix",
    "Decoded": "memfit.data._decode",
    "ImageBatches": "memfit.data._facade",
    "ImageError": "memfit._core",
    "ImageLoader": "memfit.data._loader",
    "MixUp": "memfit.data._mix",
    "Normalize": "memfit.data._device",
    "Tile": "memfit.data._tiles",
    "Tiles": "memfit.data._tiles",
    "Volume": "memfit.data._volume",
    "decode": "memfit.data._decode",
    "jpeg_decoder": "memfit._core",
    "move_boxes": "memfit.data._geometry",
    "move_mask": "memfit.data._geometry",
    "move_points": "memfit.data._geometry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memfit.data' has no attribute {name!r}")
    from importlib import import_module

    from memfit import _explain_missing_torch

    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise _explain_missing_torch(f"memfit.data.{name}", error) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
