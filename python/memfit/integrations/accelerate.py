"""memfit with Accelerate: `memfit.Step` from an accelerator's settings, and `find_executable_batch_size`
that keeps the global batch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ._libraries import require

accelerate: Any = require("accelerate")

import torch
from torch import nn

from memfit import _core
from memfit._train.faults import StepDoesNotFit, collect, forget, is_memory
from memfit._train.part import Loss
from memfit._train.step import Step

__all__ = ["find_executable_batch_size", "prepare"]

# Names under which a function may take the number of batches of an optimizer step.
_ACCUMULATE = ("accumulate", "gradient_accumulation_steps", "accumulation_steps")


def prepare(
    accelerator: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    *,
    scheduler: Any = None,
    **settings: Any,
) -> Step:
    """Return a `memfit.Step` with an accelerator's settings: its device, precision,
    `gradient_accumulation_steps` and gradient scaler.

    Model, optimizer and scheduler may be prepared by the accelerator or not. `settings` are those of
    `memfit.Step`, and take precedence. Call `step(batch)` in place of `accelerator.accumulate`,
    `accelerator.backward`,
    `optimizer.step` and `scheduler.step`.
    """
    if accelerator.distributed_type not in ("NO", "MULTI_GPU", "MULTI_CPU"):
        kind = str(accelerator.distributed_type).rpartition(".")[2]
        raise ValueError(
            f"`memfit.Step` does not run inside Accelerate's {kind}\n"
            "hint: for FSDP2, shard the model with `fully_shard` and pass it to `memfit.Step`"
        )
    is_prepared = model in accelerator._models
    if not is_prepared:
        model = accelerator.prepare_model(model)
    if not isinstance(optimizer, accelerate.optimizer.AcceleratedOptimizer):
        # On some devices, parameters are replaced when the model moves.
        known = {id(each) for each in model.parameters()}
        if not any(id(each) in known for group in optimizer.param_groups for each in group["params"]):
            raise ValueError(
                "the optimizer has none of the prepared model's parameters\n"
                "hint: create it after `accelerator.prepare(model)`, or prepare both together"
            )
    chosen: dict[str, Any] = {"accumulate": accelerator.gradient_accumulation_steps}
    if accelerator.scaler is not None:
        chosen["scaler"] = accelerator.scaler
    step = Step(
        model,
        getattr(optimizer, "optimizer", optimizer),
        loss,
        scheduler=_schedulers(accelerator, scheduler),
        **{**chosen, **settings},
    )
    # The accelerator's autocast covers the model's forward pass, and is not changed.
    step.computes_in({"bf16": "bfloat16", "fp16": "float16"}.get(accelerator.mixed_precision))
    return step


def _schedulers(accelerator: Any, scheduler: Any) -> Any:
    """Return what steps once for each optimizer step: Accelerate's schedulers step once for each process."""
    if not isinstance(scheduler, accelerate.scheduler.AcceleratedScheduler):
        return scheduler
    times = 1 if scheduler.split_batches else accelerator.num_processes
    return [scheduler.scheduler] * times if times > 1 else scheduler.scheduler


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    accelerator: Any = None,
) -> Any:
    """Call a function with smaller and smaller batch sizes until it does not run out of memory, as
    `accelerate.utils.find_executable_batch_size` does, but with the same global batch.

    The function takes `batch_size` as its first parameter, and the number of batches of an optimizer step as
    `accumulate` (or `gradient_accumulation_steps`). Their product is always `starting_batch_size`, which is
    divided by its factors. With `accelerator=`, its `gradient_accumulation_steps` are multiplied by
    `accumulate`, and the function needs no such parameter.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
            accelerator=accelerator,
        )
    if reduce_batch_size_fn is not None:
        raise ValueError(
            "`reduce_batch_size_fn` may choose sizes that do not divide the global batch\n"
            "hint: leave it out; sizes are the factors of `starting_batch_size`"
        )
    if starting_batch_size < 1:
        raise ValueError(f"`starting_batch_size` is {starting_batch_size}, but has to be at least 1")
    parameters = list(inspect.signature(function).parameters.values())
    keyword = next((each.name for each in parameters if each.name in _ACCUMULATE), None)
    if keyword is None and any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        keyword = _ACCUMULATE[0]
    if keyword is None and accelerator is None:
        raise TypeError(
            f"`{function.__name__}` has no parameter `accumulate`, so a smaller batch would change the training\n"
            "hint: add the parameter and make one optimizer step of so many batches, or pass `accelerator=`"
        )
    called: Callable[..., Any] = function

    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        if args and len(parameters) < len(args) + 1:
            raise TypeError(
                f"`{called.__name__}` was called with a batch size, which the decorator passes\n"
                "hint: leave the first argument out"
            )
        own = accelerator.gradient_accumulation_steps if accelerator is not None else 1
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        size: int | None = starting_batch_size
        while size is not None:
            accumulate = starting_batch_size // size
            if accelerator is not None:
                accelerator.gradient_accumulation_steps = own * accumulate
            words = {keyword: accumulate} if keyword is not None else {}
            try:
                return called(size, *args, **{**words, **kwargs})
            except Exception as error:
                if not (is_memory(error, device) or isinstance(error, StepDoesNotFit)):
                    raise
                forget(error)
                last = str(error)
            collect(device)
            size = _core.smaller_micro_batch(starting_batch_size, size)
        raise StepDoesNotFit(
            f"`{called.__name__}` does not fit with a batch size of 1\nhint: `memfit plan` searches for what else helps\n"
            f"{last}"
        )

    return decorated
