"""`dora`: the model's weights are frozen, and DoRA adapters of the library peft are trained.

The adapters are on the layers that `lora` would choose, and the layers behind the repeated blocks, such as a
new classifier, remain trainable.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .lora import behind, regroup, trained_layers
from .registry import Stage, lever
from .target import CannotApply, Target, Undo, table
from .wrapping import together


@lever("dora", Stage.MODEL, 51)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Train adapters: `value` is their rank, or a table of `rank` and `alpha`. The undo drops them."""
    wanted = table(value, "rank")
    rank = int(wanted.get("rank", 8))
    if rank < 1:
        raise CannotApply(name, f"the rank is at least 1, got {rank}")
    try:
        import peft
    except ImportError as error:
        raise CannotApply(name, "peft is not installed: `pip install peft`") from error
    model = target.model
    layers = trained_layers(model, name)
    stays = {id(each) for each in behind(model, layers)}
    before = [(each, each.requires_grad) for each in model.parameters()]
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=float(wanted.get("alpha", 2 * rank)),
        target_modules=list(layers),
        use_dora=True,
    )
    modes = {id(module): module.training for module in model.modules()}
    try:
        peft.inject_adapter_in_model(config, model)
    except Exception as error:
        raise CannotApply(name, f"peft refuses: {type(error).__name__}: {error}") from error
    known = {id(each) for each, _ in before}
    instead: dict[nn.Parameter, list[nn.Parameter]] = {
        each: [] for each, _ in before if id(each) not in stays
    }
    for path, layer in layers.items():
        adapter = model.get_submodule(path)
        adapter.train(modes[id(layer)])
        instead[layer.weight] = [each for each in adapter.parameters() if id(each) not in known]
    for parameter, trains in before:
        parameter.requires_grad_(trains and id(parameter) in stays)
        if id(parameter) not in stays:
            parameter.grad = None
    regrouped = regroup(target.optimizers, instead)

    def undo() -> None:
        together(regrouped)()
        for path, layer in layers.items():
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
        for parameter, trains in before:
            parameter.requires_grad_(trains)

    return undo
