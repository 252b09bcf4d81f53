"""How each lever is applied to an ordinary model, optimizer, loss and loader, and how it is undone.

    target = Target(model, [optimizer], loss)
    applied = apply(target, [("checkpointing", ["blocks.0", "blocks.1"]), ("autocast-bf16", True)])
    with target.around():
        target.loss(target.model, target.prepare(batch)).backward()
    target.optimizers[0].step()
    applied.undo()

Each lever is a function `apply(target, value, name) -> undo` of a module here, registered with the decorator
`lever` (`registry.py`); `undo()` puts back what it did, and leaves no hook. Models and optimizers are changed
in place, so that a script's own names for them, its scheduler's and its checkpoints' keep their meaning;
`target.model` is another object only where the lever is said to wrap it. The name of a lever, its label and
what it excludes are declared in the Rust crate `memfit-vocabulary`; what is applied here was chosen there.

Nothing in this folder imports memfit: it needs torch alone, so that it can be brought along into an
interpreter that has no memfit. What cannot be applied raises `CannotApply`, and leaves the target as it was.
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
    """Apply levers, in their order, whichever they come in. Where one cannot be applied, those before it are
    undone.
    """
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
    """Levers in the order in which they are applied; those that nobody knows come last."""

    def place(setting: tuple[str, Any]) -> tuple[int, int]:
        lever = known(setting[0])
        return (lever.stage, lever.place) if lever is not None else (len(Stage), 0)

    return sorted(chosen, key=place)


def apply_one(target: Target, name: str, value: Any) -> Undo:
    """Apply one lever; what undoes it."""
    return _lever(name).apply(target, value, name)


def _lever(name: str) -> Lever:
    lever = known(name)
    if lever is None:
        raise CannotApply(name, "memfit does not know how it is applied: it is one to carry out by hand")
    return lever


def prepared(target: Target) -> Undo:
    """Let the models take what they are called with as the levers want it, for who calls them knows nothing
    of `prepare`.
    """
    from .wrapping import together, wrap_call

    def around(_model: Any, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call(*target.prepare(args), **target.prepare(kwargs))

    return together([wrap_call(model, around) for model in target.models()])


def environment(chosen: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The environment that a process has to be started with: some levers only take hold there."""
    from .allocator import variables

    settings: dict[str, str] = {}
    for name, value in chosen:
        lever = known(name)
        if lever is not None and lever.stage is Stage.ENVIRONMENT:
            settings.update(variables(name, value))
    return settings
