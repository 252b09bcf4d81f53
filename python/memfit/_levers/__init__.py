"""Applies each lever to an ordinary model, optimizer, loss and loader, and undoes it.

  target = Target(model, [optimizer], loss)
  applied = apply(target, [("checkpointing", ["blocks.0", "blocks.1"]), ("autocast-bf16", True)])
  with target.around():
      target.loss(target.model, target.prepare(batch)).backward()
  target.optimizers[0].step()
  applied.undo()

Each lever is a function `apply(target, value, name) -> undo` in a module of this package, registered with the
decorator `lever` (`registry.py`); `undo()` restores the previous state and leaves no hook. Models and
optimizers are changed in place, so references to them in the script, its scheduler and its checkpoints stay
valid; `target.model` is another object only if the lever is documented to wrap it. The name of a lever, its
label and the levers it excludes are declared in the Rust crate `memfit-vocabulary`, which also chooses the
levers.

This package needs torch alone and does not import memfit, so that it can be copied into an interpreter
without memfit. A lever that cannot be applied raises `CannotApply` and leaves the target unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .registry import Lever, Stage, known, levers
from .target import Applied, CannotApply, Target, Undo, innermost

__all__ = [
    "Applied",
    "CannotApply",
    "Lever",
    "Stage",
    "Target",
    "Undo",
    "apply",
    "apply_one",
    "environment",
    "innermost",
    "known",
    "levers",
    "ordered",
    "prepared",
]


def apply(target: Target, chosen: Iterable[tuple[str, Any]]) -> Applied:
    """Apply levers in their fixed order. If one cannot be applied, undo those before it."""
    wanted = dict(chosen)
    for name in wanted:
        _lever(name)
    applied = Applied()
    try:
        for name, value in ordered(wanted.items()):
            applied.add(name, apply_one(target, name, value))
    except BaseException:
        applied.undo()
        raise
    return applied


def ordered(chosen: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort levers in the order in which they are applied; unknown levers come last."""

    def place(setting: tuple[str, Any]) -> tuple[int, int]:
        lever = known(setting[0])
        return (lever.stage, lever.place) if lever is not None else (len(Stage), 0)

    return sorted(chosen, key=place)


def apply_one(target: Target, name: str, value: Any) -> Undo:
    """Apply one lever and return the function that undoes it."""
    return _lever(name).apply(target, value, name)


def _lever(name: str) -> Lever:
    lever = known(name)
    if lever is None:
        raise CannotApply(name, "memfit cannot apply this lever; change the script by hand")
    return lever


def prepared(target: Target) -> Undo:
    """Call `prepare` on the arguments of each model call, for callers that do not know of it."""
    from .wrapping import together, wrap_call

    def around(_model: Any, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call(*target.prepare(args), **target.prepare(kwargs))

    return together([wrap_call(model, around) for model in target.models()])


def environment(chosen: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the environment variables for a new process; some levers only have an effect there."""
    from .allocator import variables

    settings: dict[str, str] = {}
    for name, value in chosen:
        lever = known(name)
        if lever is not None and lever.stage is Stage.ENVIRONMENT:
            settings.update(variables(name, value))
    return settings
