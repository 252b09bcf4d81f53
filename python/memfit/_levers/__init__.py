"""How each lever is applied to an ordinary model, optimizer, loss and loader, and how it is undone.

    target = Target(model, [optimizer], loss)
    applied = apply(target, [("checkpointing", ["blocks.0", "blocks.1"]), ("autocast-bf16", True)])
    with target.around():
        target.loss(target.model, target.prepare(batch)).backward()
    target.optimizers[0].step()
    applied.undo()

Each lever is one module here with one function `apply(target, value) -> undo`, named in `HOMES`; `undo()`
puts back what it did, and leaves no hook. Models and optimizers are changed in place, so that a script's own
names for them, its scheduler's and its checkpoints' keep their meaning; `target.model` is another object only
where the lever is said to wrap it. What a lever is called, its label and what it excludes are of the Rust
crate `memfit-vocabulary`; what is applied here was chosen there.

Nothing in this folder imports memfit: it needs torch alone, so that it can be brought along into an
interpreter that has no memfit. What cannot be applied raises `CannotApply`, and leaves the target as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from .target import Applied, CannotApply, Target, Undo, innermost

__all__ = [
    "HOMES",
    "Applied",
    "CannotApply",
    "Target",
    "Undo",
    "apply",
    "apply_one",
    "environment",
    "innermost",
    "ordered",
    "prepared",
]

# Levers by name, each with its module, in the order in which they are applied: what changes weights comes
# before what wraps blocks, compiling sees all of it, and what compiled modules keep goes to the host from
# outside.
HOMES = {
    "allocator-settings": "allocator",
    "expandable-segments": "allocator",
    "length-buckets": "buckets",
    "loader-workers": "workers",
    "resize-before-upload": "resize",
    "quantized-base": "quantized",
    "quantized-weights": "quantized",
    "kv-cache-8-bit": "kv_cache",
    "kv-cache-window": "kv_cache",
    "lora": "lora",
    "pure-bf16": "pure_bf16",
    "channels-last": "channels_last",
    "sdpa": "sdpa",
    "chunked-loss": "chunked_loss",
    "checkpointing": "checkpointing",
    "gradient-as-bucket-view": "bucket_view",
    "compile": "compiling",
    "activation-budget": "activation_budget",
    "activation-offload": "offload",
    "shard": "shard",
    "adafactor": "adafactor",
    "foreach-off": "foreach",
    "fused-optimizer": "foreach",
    "8-bit-optimizer": "states",
    "bf16-optimizer-state": "states",
    "host-optimizer-state": "states",
    "optimizer-in-backward": "in_backward",
    "autocast-bf16": "precision",
    "autocast-fp16": "precision",
    "tf32": "precision",
    "micro-batch": "micro_batch",
}


def apply(target: Target, chosen: Iterable[tuple[str, Any]]) -> Applied:
    """Apply levers, in their order, whichever they come in. Where one cannot be applied, those before it are
    undone.
    """
    wanted = dict(chosen)
    unknown = [name for name in wanted if name not in HOMES]
    if unknown:
        raise CannotApply(
            unknown[0], "memfit does not know how it is applied: it is one to carry out by hand"
        )
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
    places = {name: place for place, name in enumerate(HOMES)}
    return sorted(chosen, key=lambda lever: places.get(lever[0], len(places)))


def apply_one(target: Target, name: str, value: Any) -> Undo:
    """Apply one lever; what undoes it."""
    module = import_module(f".{HOMES[name]}", __name__)
    undo: Undo = module.apply(target, value, name)
    return undo


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
        if HOMES.get(name) == "allocator":
            settings.update(variables(name, value))
    return settings
