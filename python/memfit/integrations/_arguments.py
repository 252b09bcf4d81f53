"""Training arguments of Transformers from a plan file."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import transformers

from memfit._levers.saying import warn
from memfit._train.plans import read_plan

from ._settings import LOADER_LEVERS, Settings, refuse_parallel

_BATCH_KEYWORDS = ("per_device_train_batch_size", "gradient_accumulation_steps")


def training_arguments(
    plan: Any, /, *, arguments_class: Callable[..., Any] = transformers.TrainingArguments, **kwargs: Any
) -> Any:
    """Return training arguments that express a plan; `kwargs` take precedence.

    Settings that training arguments cannot express are left to `Mixin` or `Callback`, which find them in the
    returned arguments. A warning names the settings that neither of the two can apply.
    """
    read = read_plan(plan, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    refuse_parallel(read)
    levers = {each["name"]: each["value"] for each in read.get("lever", ()) if each.get("value") is not False}
    micro_batch = read.get("micro_batch")
    stated: dict[str, Any] = {}
    for keyword, source, lever in read.get("settings", {}).get("transformers", ()):
        if lever == "8-bit-optimizer" and find_spec("bitsandbytes") is None:
            continue
        if keyword in _BATCH_KEYWORDS:
            # The global batch is the product of both: the user's own is not multiplied by the plan's.
            if any(name in kwargs for name in _BATCH_KEYWORDS):
                continue
            micro_batch = None
        elif keyword in kwargs and kwargs[keyword] != ast.literal_eval(source):
            warn(f"the plan's `{lever}` is not applied: `{keyword}={kwargs[keyword]!r}` takes precedence")
        stated[keyword] = ast.literal_eval(source)
        levers.pop(lever, None)
    batch = read.get("made_for", {}).get("batch")
    if micro_batch is not None and batch and not any(name in kwargs for name in _BATCH_KEYWORDS):
        # Micro-batches that do not divide the batch are left to the mixin.
        stated["per_device_train_batch_size"] = batch
        stated["gradient_accumulation_steps"] = read.get("accumulate", 1)
    for name in LOADER_LEVERS:
        if levers.pop(name, None) is not None:
            warn(
                f"the plan's `{name}` is not applied: it is for the loader, and training arguments cannot state it"
            )
    arguments = arguments_class(**{**stated, **kwargs})
    rest = {"lever": [{"name": name, "value": value} for name, value in levers.items()]}
    arguments.memfit_settings = Settings(plan=rest, micro_batch=micro_batch)
    if levers:
        names = ", ".join(f"`{name}`" for name in levers)
        warn(
            f"training arguments cannot state {names}: `memfit.integrations.transformers.Mixin` applies the rest"
        )
    return arguments
