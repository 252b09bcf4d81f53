"""memfit: make PyTorch training fit in GPU memory.

Importing this does not import torch: modules that need it are loaded on first use.
"""

from __future__ import annotations

from memfit._core import __version__

# Defined as in `typing`, which takes longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memfit import data, shrink
    from memfit._train.batches import register_batch_type
    from memfit._train.distillation import distill
    from memfit._train.faults import MemfitError, StepDoesNotFit, StepInvalid
    from memfit._train.holding import Holder, holders, release
    from memfit._train.inference import Inference, inference
    from memfit._train.result import Result
    from memfit._train.step import Step

__all__ = [
    "Holder",
    "Inference",
    "MemfitError",
    "Result",
    "Step",
    "StepDoesNotFit",
    "StepInvalid",
    "__version__",
    "data",
    "distill",
    "holders",
    "inference",
    "register_batch_type",
    "release",
    "shrink",
]

_HOMES = {
    "Holder": "holding",
    "Inference": "inference",
    "MemfitError": "faults",
    "Result": "result",
    "Step": "step",
    "StepDoesNotFit": "faults",
    "StepInvalid": "faults",
    "distill": "distillation",
    "holders": "holding",
    "inference": "inference",
    "register_batch_type": "batches",
    "release": "holding",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "data":
        return import_module("memfit.data")
    if name == "shrink":
        try:
            return import_module("memfit.shrink")
        except ModuleNotFoundError as error:
            raise _explain_missing_torch("memfit.shrink", error) from None
    if name not in _HOMES:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    try:
        return getattr(import_module(f"memfit._train.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise _explain_missing_torch(f"memfit.{name}", error) from None


def _explain_missing_torch(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Add installation advice to the error if the missing module is PyTorch."""
    import sys

    if error.name is None or error.name.split(".")[0] != "torch":
        return error
    remedy = f"install it: `{sys.executable} -m pip install torch`"
    return ModuleNotFoundError(f"`{name}` needs PyTorch, which is not installed here; {remedy}", name="torch")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "data", "shrink"])
