"""What a step cannot run, said before anything is run."""

from __future__ import annotations

import inspect
from typing import Any

import torch


def refuse_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer, or one that evaluates the model in its step; of several, each."""
    if isinstance(optimizer, dict) or (isinstance(optimizer, (list, tuple)) and not optimizer):
        raise TypeError(
            f"`optimizer` is {'a' if optimizer else 'an empty'} {type(optimizer).__name__}\n"
            "hint: pass an optimizer, or a list of those that step together; of those that take turns, as in a GAN, each has a "
            "`memfit.Step` of its own"
        )
    if isinstance(optimizer, (list, tuple)):
        for one in optimizer:
            refuse_optimizer(one)
        _refuse_common_parameters(optimizer)
        return
    step = getattr(optimizer, "step", None)
    if step is None or not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"`optimizer` is a {type(optimizer).__name__}, which has no `step` or no `param_groups`\n"
            "hint: pass an optimizer of `torch.optim`, or one that is built like these"
        )
    if isinstance(optimizer, torch.optim.LBFGS) or _needs_closure(step):
        raise TypeError(
            f"{type(optimizer).__name__} evaluates the model within its step, which `memfit.Step` does not do\n"
            "hint: write its closure by hand, and run the evaluation under `memfit.inference`"
        )


def _refuse_common_parameters(optimizers: Any) -> None:
    """Refuse optimizers of which two would update the same parameter with one gradient."""
    owners: dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if owners.setdefault(id(parameter), number) != number:
                    raise ValueError(
                        f"optimizers {owners[id(parameter)]} and {number} both have a parameter of shape "
                        f"{tuple(parameter.shape)}, and would both update it in one step\n"
                        "hint: give each parameter to one of them"
                    )


def refuse_scheduler(scheduler: Any) -> None:
    """Refuse a schedule that is not stepped once for each step of the optimizer; of several, each."""
    if isinstance(scheduler, (list, tuple)):
        for one in scheduler:
            refuse_scheduler(one)
        return
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise TypeError(
            "`scheduler` is a ReduceLROnPlateau, which is stepped with a figure of the evaluation\n"
            "hint: leave `scheduler=` out, and call `scheduler.step(figure)` after each evaluation"
        )


def refuse_embedding(embed: Any, whole: bool | None) -> None:
    """Refuse a loss of embeddings that would see those of a part only, and a whole one without embeddings."""
    if embed is not None and whole is False:
        raise ValueError(
            "`embed=` is for a loss that sees the whole batch's embeddings, and `whole=False` asks for parts of them\n"
            "hint: leave `whole=` out; a loss that needs no other samples needs no `embed=`"
        )
    if embed is None and whole:
        raise ValueError(
            "`whole=True` needs `embed=fn(model, part)`, which gives the loss the embeddings of the whole batch\n"
            'hint: `allow="exact"` never divides a batch'
        )


def _needs_closure(step: Any) -> bool:
    """Whether a closure has no default, or is asked for when there is none."""
    try:
        parameters = inspect.signature(step).parameters
    except (TypeError, ValueError):
        return False
    closure = parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
