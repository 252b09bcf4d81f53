"""Refuses arguments that a step cannot run, before anything runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import torch


def refuse_optimizer(optimizer: Any) -> None:
    """Refuse an object that is no optimizer, or an optimizer that evaluates the model in its step."""
    if isinstance(optimizer, dict) or (isinstance(optimizer, (list, tuple)) and not optimizer):
        raise TypeError(
            f"`optimizer` is {'a' if optimizer else 'an empty'} {type(optimizer).__name__}\n"
            "hint: pass an optimizer, or a list of optimizers that step together; optimizers that take "
            "turns, as in a GAN, each need their own `memfit.Step`"
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
            "hint: pass an optimizer of `torch.optim`, or one with the same interface"
        )
    inner: Any = optimizer
    while inner is not None:
        if _evaluates_model(inner):
            raise TypeError(
                f"{type(inner).__name__} evaluates the model in its step or between two steps, which "
                "`memfit.Step` does not support\n"
                "hint: pass an optimizer that needs one backward pass, or write this one's loop by hand; "
                "`memfit run` shows if that loop fits, and `memfit plan` what makes it fit"
            )
        # Libraries wrap optimizers.
        wrapped = getattr(inner, "optimizer", None)
        inner = wrapped if isinstance(wrapped, torch.optim.Optimizer) and wrapped is not inner else None


def _refuse_common_parameters(optimizers: Any) -> None:
    """Refuse optimizers that share a parameter."""
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
    """Refuse a scheduler that does not step once per optimizer step."""
    if isinstance(scheduler, (list, tuple)):
        for one in scheduler:
            refuse_scheduler(one)
        return
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise TypeError(
            "`scheduler` is a ReduceLROnPlateau, which steps on an evaluation metric\n"
            "hint: leave `scheduler=` out, and call `scheduler.step(metric)` after each evaluation"
        )


def refuse_embedding(embed: Any, whole: bool | None) -> None:
    """Refuse `embed=` with `whole=False`, and `whole=True` without `embed=`."""
    if embed is not None and whole is False:
        raise ValueError(
            "`embed=` is for a loss that sees the embeddings of the whole batch, but `whole=False` gives it "
            "those of a micro-batch\n"
            "hint: leave `whole=` out; a loss that needs no other samples needs no `embed=`"
        )
    if embed is None and whole:
        raise ValueError(
            "`whole=True` needs `embed=fn(model, part)`, so that the loss sees the embeddings of the whole "
            "batch\n"
            'hint: `allow="exact"` never splits a batch'
        )


def refuse_embedding_on_ranks(embed: Any, world: int) -> None:
    """Refuse `embed=` on several ranks."""
    if embed is not None and world > 1:
        raise ValueError(
            "`embed=` runs in a single process: with several, the loss would need the embeddings of all "
            "ranks\n"
            "hint: run it on one GPU, or leave `embed=` out and let each rank's loss see its own "
            "whole batch"
        )


def refuse_without_gradients(accumulate: int, clip: float | None, scaler: Any, world: int) -> None:
    """Refuse arguments that need all gradients at once; with the optimizer in the backward pass they
    never exist together.
    """
    wanted = {
        "accumulate": accumulate > 1,
        "clip_grad_norm": clip is not None,
        'precision="fp16"': scaler is not None,
        "several ranks": world > 1,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise ValueError(
                f"`optimizer-in-backward` cannot be combined with {name}: each gradient is freed as soon "
                "as it has been used\n"
                "hint: leave one of them out"
            )


def refuse_scaler_in_pipeline(scaler: Any, pipes: bool) -> None:
    """Refuse to scale the losses of a pipeline: each rank would find overflows in its own stages only."""
    if scaler is not None and pipes:
        raise ValueError(
            "a pipeline cannot train with a scaler: each rank sees the gradients of its own stages only\n"
            'hint: use `precision="bf16"`'
        )


def refuse_noise(never_whole: bool) -> None:
    """Refuse to measure the gradient noise scale if no gradient of a micro-batch exists as a whole."""
    if never_whole:
        raise ValueError(
            "`noise_scale=True` needs the whole gradient of each micro-batch, which does not exist with "
            "`embed=`, sharded parameters or `optimizer-in-backward`\n"
            "hint: leave one of them out"
        )


def _evaluates_model(optimizer: Any) -> bool:
    """Return `True` if a step takes more than one backward pass: it requires an argument, refuses to run
    without a closure, or consists of two steps, as sharpness-aware minimisation does.
    """
    if all(callable(getattr(optimizer, name, None)) for name in ("first_step", "second_step")):
        return True
    try:
        # Schedulers wrap the method so that its signature has `self`.
        signature = inspect.signature(optimizer.step).parameters.values()
        parameters = [each for each in signature if each.name != "self"]
    except (TypeError, ValueError):
        return False
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(each.default is inspect.Parameter.empty and each.kind not in fixed for each in parameters):
        return True
    return any(_refuses_none(optimizer.step, each.name) for each in parameters if each.default is None)


def _refuses_none(function: Any, name: str) -> bool:
    """Return `True` if a function's source raises an error, whatever else holds, where an argument is
    `None`.
    """
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
        statements = list(ast.parse(source).body)
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    is_none, is_given = f"{name} is None", f"{name} is not None"
    while statements:
        node = statements.pop()
        if isinstance(node, (ast.FunctionDef, ast.With)):
            statements += node.body
        if isinstance(node, ast.Assert) and ast.unparse(node.test) in (name, is_given, f"callable({name})"):
            return True
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            branch = node.body if test in (is_none, f"not {name}") else []
            branch = node.orelse if test in (name, is_given) else branch
            if any(isinstance(each, ast.Raise) for each in branch):
                return True
    return False
