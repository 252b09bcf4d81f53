"""`dora`, `peft-qlora` and `torchao-qlora`: the model's weights are frozen, and adapters of the library peft
are trained.

The adapters are on the layers that `lora` would choose, and the layers behind the repeated blocks, such as a
new classifier, remain trainable. For `peft-qlora` the frozen weights are quantized by bitsandbytes, for
`torchao-qlora` by torchao.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from .lora import behind, trained_layers
from .registry import Stage, lever
from .replacing import regroup, replace
from .target import CannotApply, Target, Undo, needs, table
from .torchao_weights import drop_from, quantized
from .transposed import as_linear, is_transposed, sides
from .wrapping import together

_RANK = 16


@lever("dora", Stage.MODEL, 51)
def dora(target: Target, value: Any, name: str) -> Undo:
    """Train adapters: `value` is their rank, or a table of `rank` and `alpha`. The undo drops them."""
    wanted = _rank(value, name)
    layers = trained_layers(target.model, name)
    turned = all(is_transposed(layer) for layer in layers.values())
    return _inject(
        target, name, layers, _behind(target, layers), wanted, use_dora=True, fan_in_fan_out=turned
    )


@lever("peft-qlora", Stage.MODEL, 55)
def peft_qlora(target: Target, value: Any, name: str) -> Undo:
    """Train adapters on weights in NF4: `value` is their rank, or a table of `rank` and `alpha`."""
    wanted = _rank(value, name)
    with needs(name, "bitsandbytes"):
        from bitsandbytes.nn import Linear4bit, Params4bit
    layers = trained_layers(target.model, name)
    stays = _behind(target, layers)
    _refuse_quantized(layers, name)
    instead: dict[nn.Module, nn.Module] = {}
    for layer in layers.values():
        packed = Linear4bit(
            *sides(layer), bias=False, compute_dtype=layer.weight.dtype, quant_type="nf4", device="meta"
        )
        packed.bias = layer.bias
        place, rows = layer.weight.device, layer.weight.data
        # The weights are quantized where they are moved to, from the host.
        given = (rows.t() if is_transposed(layer) else rows).cpu().contiguous()
        packed.weight = Params4bit(given, requires_grad=False, quant_type="nf4", module=packed).to(place)
        instead[layer] = packed
    weights = [layer.weight for layer in layers.values()]
    undone = [replace(target.model, instead)]
    model = target.model
    # Attributes of a transformers model by which peft chooses its adapters.
    model.is_loaded_in_4bit = True
    try:
        packed_layers = {path: model.get_submodule(path) for path in layers}
        undone.append(_inject(target, name, packed_layers, stays, wanted, in_place_of=weights))
    except BaseException:
        together(undone)()
        raise
    finally:
        del model.is_loaded_in_4bit
    if not target.undoes:
        drop_from(target.optimizers, weights)
        return lambda: None
    return together(undone)


@lever("torchao-qlora", Stage.MODEL, 57)
def torchao_qlora(target: Target, value: Any, name: str) -> Undo:
    """Train adapters on weights in int8: `value` is their rank, or a table of `rank` and `alpha`."""
    wanted = _rank(value, name)
    with needs(name, "torchao"):
        from torchao.quantization import Int8WeightOnlyConfig
    _refuse_quantized(trained_layers(target.model, name), name)
    undone = [as_linear(target)]
    try:
        layers = trained_layers(target.model, name)
        stays = _behind(target, layers)
        weights = [layer.weight for layer in layers.values()]
        undone.append(quantized(target, list(layers.values()), Int8WeightOnlyConfig(version=2), name))
        with warnings.catch_warnings():
            # peft cannot merge adapters into these weights, and nothing here does.
            warnings.filterwarnings("ignore", message=".*get_apply_tensor_subclass")
            undone.append(_inject(target, name, layers, stays, wanted, in_place_of=weights))
    except BaseException:
        together(undone)()
        raise
    # An undo would have to keep the original weights in memory.
    return together(undone) if target.undoes else lambda: None


def _behind(target: Target, layers: dict[str, Any]) -> set[int]:
    return {id(each) for each in behind(target.model, layers)}


def _refuse_quantized(layers: dict[str, Any], name: str) -> None:
    kinds = {layer.weight.dtype for layer in layers.values()}
    if not all(kind.is_floating_point and kind.itemsize > 1 for kind in kinds):
        raise CannotApply(name, "the weights are quantized already")


def _rank(value: Any, name: str) -> dict[str, float]:
    wanted = table(value, "rank")
    rank = int(wanted.get("rank", _RANK))
    if rank < 1:
        raise CannotApply(name, f"the rank must be at least 1, got {rank}")
    return {"r": rank, "lora_alpha": float(wanted.get("alpha", 2 * rank))}


def _inject(
    target: Target,
    name: str,
    layers: dict[str, Any],
    stays: set[int],
    wanted: dict[str, float],
    in_place_of: list[nn.Parameter] | None = None,
    **options: Any,
) -> Undo:
    """Add adapters to layers, and train only these and the parameters in `stays`.

    `in_place_of` are the layers' original weights, if the optimizers have those and the layers have others.
    """
    with needs(name, "peft"):
        import peft
    model = target.model
    before = [(each, each.requires_grad) for each in model.parameters()]
    config = peft.LoraConfig(**wanted, target_modules=list(layers), **options)
    modes = {id(module): module.training for module in model.modules()}
    try:
        peft.inject_adapter_in_model(config, model)
    except Exception as error:
        raise CannotApply(name, f"peft refuses: {type(error).__name__}: {error}") from error
    known = {id(each) for each, _ in before}
    instead: dict[nn.Parameter, list[nn.Parameter]] = {
        each: [] for each, _ in before if id(each) not in stays
    }
    weights = in_place_of or [layer.weight for layer in layers.values()]
    for (path, layer), weight in zip(layers.items(), weights, strict=True):
        adapter = model.get_submodule(path)
        adapter.train(modes[id(layer)])
        instead[weight] = [each for each in adapter.parameters() if id(each) not in known]
    for parameter, trains in before:
        if not parameter.is_floating_point():
            continue
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
            if parameter.is_floating_point():
                parameter.requires_grad_(trains)

    return undo
