"""memfit: make PyTorch training fit in GPU memory.

Importing this does not import torch: modules that need it are loaded on first use.
"""

from __future__ import annotations

from memfit._core import __version__

# Defined as in `typing`, which takes longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memfit import checkpoints, data, integrations, results, shrink
    from memfit._api.function import fits
    from memfit._api.recording import record
    from memfit._api.verbs import cards, check, explain, plan, run
    from memfit._errors import CommandError, MemfitError, ScriptError
    from memfit._train.batches import register_batch_type
    from memfit._train.distillation import distill
    from memfit._train.faults import StepDoesNotFit, StepInvalid
    from memfit._train.holding import Holder, holders, release
    from memfit._train.inference import Inference, inference
    from memfit._train.result import Result
    from memfit._train.step import Step
    from memfit.results import CardsReport, CheckReport, ExplainReport, PlanReport, RunReport

_HOMES = {
    "CardsReport": "results.cards",
    "CheckReport": "results.check",
    "CommandError": "_errors",
    "ExplainReport": "results.explain",
    "Holder": "_train.holding",
    "Inference": "_train.inference",
    "MemfitError": "_errors",
    "PlanReport": "results.plan",
    "Result": "_train.result",
    "RunReport": "results.run",
    "ScriptError": "_errors",
    "Step": "_train.step",
    "StepDoesNotFit": "_train.faults",
    "StepInvalid": "_train.faults",
    "cards": "_api.verbs",
    "check": "_api.verbs",
    "distill": "_train.distillation",
    "explain": "_api.verbs",
    "fits": "_api.function",
    "holders": "_train.holding",
    "inference": "_train.inference",
    "plan": "_api.verbs",
    "record": "_api.recording",
    "register_batch_type": "_train.batches",
    "release": "_train.holding",
    "run": "_api.verbs",
}
_MODULES = ("checkpoints", "data", "integrations", "results", "shrink")

__all__ = [
    "CardsReport",
    "CheckReport",
    "CommandError",
    "ExplainReport",
    "Holder",
    "Inference",
    "MemfitError",
    "PlanReport",
    "Result",
    "RunReport",
    "ScriptError",
    "Step",
    "StepDoesNotFit",
    "StepInvalid",
    "__version__",
    "cards",
    "check",
    "checkpoints",
    "data",
    "distill",
    "explain",
    "fits",
    "holders",
    "inference",
    "integrations",
    "plan",
    "record",
    "register_batch_type",
    "release",
    "results",
    "run",
    "shrink",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    try:
        if name in _MODULES:
            return import_module(f"memfit.{name}")
        return getattr(import_module(f"memfit.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise _explain_missing_torch(f"memfit.{name}", error) from None


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, for `%load_ext memfit`."""
    from memfit._notebook.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the extension's hook, for `%unload_ext memfit`."""
    from memfit._notebook.magics import unload

    unload(shell)


def _explain_missing_torch(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Add installation advice to the error if the missing module is PyTorch."""
    import sys

    if error.name is None or error.name.split(".")[0] != "torch":
        return error
    remedy = f"install it: `{sys.executable} -m pip install torch`"
    return ModuleNotFoundError(f"`{name}` needs PyTorch, which is not installed here; {remedy}", name="torch")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
