"""`lora`: the model's weights are frozen, and LoRA adapters are trained on its linear layers.

The undo merges the adapters into the weights; an untrained model is restored bit for bit. State dicts contain
the merged weights, in host memory, under the model's original names. Layers behind the repeated blocks, such
as a new classifier head, remain fully trainable, since no checkpoint may contain weights for them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .blocks import blocks
from .registry import Stage, lever
from .replacing import regroup
from .several import named
from .target import CannotApply, Target, Undo, modules, table
from .transposed import is_transposed, linear_layers, sides
from .wrapping import together, wrap

DOWN, UP = "memfit_lora_down", "memfit_lora_up"
_SCALE = "_memfit_lora_scale"


@lever("lora", Stage.MODEL, 50)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Train adapters: `value` is their rank, or a table of `rank`, `alpha` and the `modules` that get one."""
    wanted = table(value, "rank")
    rank, alpha = int(wanted.get("rank", 8)), float(wanted.get("alpha", 2 * int(wanted.get("rank", 8))))
    if rank < 1:
        raise CannotApply(name, f"the rank must be at least 1, got {rank}")
    layers = trained_layers(target.model, name, target, wanted.get("modules"))
    stays = set(behind(target.model, layers))
    trained = [(each, each.requires_grad) for each in target.model.parameters() if each not in stays]
    for parameter, _ in trained:
        parameter.requires_grad_(False)
        parameter.grad = None
    undone: list[Undo] = []

    def thaw() -> None:
        for parameter, before in trained:
            parameter.requires_grad_(before)

    undone.append(thaw)
    # For each frozen weight, the adapter matrices that are trained instead.
    instead: dict[nn.Parameter, list[nn.Parameter]] = {parameter: [] for parameter, _ in trained}
    for path, layer in layers.items():
        undone.append(_one(path, layer, rank, alpha / rank, name))
        instead[layer.weight] = [layer._parameters[DOWN], layer._parameters[UP]]  # type: ignore[list-item]
    undone += regroup(target.optimizers, instead)
    return together(undone)


def trained_layers(
    model: nn.Module, name: str, target: Target | None = None, chosen: Any = None
) -> dict[str, Any]:
    """Return the linear layers that get an adapter: those of the repeated blocks, or else all but the
    last.
    """
    if chosen and target is not None:
        picked = zip(chosen, modules(target, name, chosen), strict=True)
        layers = {
            path: module for path, module in picked if isinstance(module, nn.Linear) or is_transposed(module)
        }
        if len(layers) < len(chosen):
            raise CannotApply(name, "only linear layers can have an adapter")
        return layers
    inside = tuple(f"{path}." for path in blocks(model))
    # The adapter of a weight shared by several modules would apply to all of them.
    every = linear_layers(model)
    layers = {path: module for path, module in every.items() if path.startswith(inside)} if inside else {}
    if not layers and len(every) > 1:
        layers = dict(list(every.items())[:-1])
    if not layers:
        raise CannotApply(name, "the model has no linear layers that could have an adapter")
    return layers


def behind(model: nn.Module, layers: dict[str, Any]) -> Iterator[nn.Parameter]:
    """Yield the parameters behind the repeated blocks and the adapted layers: a final norm, a head.

    The layer that computes the logits of a vocabulary is excluded: it is not new, and as large as the
    embeddings.
    """
    found = blocks(model)
    # Without blocks, a layer without an adapter stays frozen unless it is the last one.
    inside = {model.get_submodule(path) for path in found} if found else set()
    linear = [module for module in model.modules() if type(module) is nn.Linear or is_transposed(module)]
    ahead = {*layers.values(), *([] if found else linear[:-1])}
    for block in inside:
        ahead.update(block.modules())
    shared = Counter(id(each) for module in model.modules() for each in module._parameters.values())
    words = {each.num_embeddings for each in model.modules() if isinstance(each, nn.Embedding)}
    for _, whole in named(model):
        order = list(whole.modules())
        last = max((place for place, module in enumerate(order) if module in ahead), default=len(order))
        for module in order[last + 1 :]:
            if isinstance(module, nn.Embedding) or getattr(module, "out_features", None) in words:
                continue
            own = module._parameters.values()
            yield from (each for each in own if each is not None and shared[id(each)] == 1)


def _one(path: str, layer: Any, rank: int, scale: float, name: str) -> Undo:
    place = layer.weight.device
    kind = layer.weight.dtype if layer.weight.is_floating_point() else torch.float32
    # A separate generator, so that the script's random numbers are unaffected.
    seed = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "little")
    inputs, outputs = sides(layer)
    numbers = torch.rand(rank, inputs, generator=torch.Generator().manual_seed(seed))
    bound = inputs**-0.5
    down = nn.Parameter(((numbers * 2 - 1) * bound).to(place, kind))
    up = nn.Parameter(torch.zeros(outputs, rank, dtype=kind, device=place))
    layer.register_parameter(DOWN, down)
    layer.register_parameter(UP, up)
    layer.__dict__[_SCALE] = scale

    def around(called: nn.Module, forward: Callable[..., torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        down, up = getattr(called, DOWN), getattr(called, UP)
        beside = functional.linear(functional.linear(inputs.to(down.dtype), down), up) * scale
        through = forward(inputs)
        return through + beside.to(through.dtype)

    unwrap = wrap(layer, around, name)
    hooks = [
        layer.register_state_dict_post_hook(_added),
        layer.register_load_state_dict_pre_hook(_begin_anew),
    ]

    def undo() -> None:
        unwrap()
        for hook in hooks:
            hook.remove()
        del layer._parameters[DOWN], layer._parameters[UP], layer.__dict__[_SCALE]
        if bool((up != 0).any()):
            with torch.no_grad():
                change = _change(layer, down, up, scale).to(layer.weight.dtype)
                if layer.weight.numel():
                    layer.weight.add_(change)
                else:
                    # The weight is quantised: `quantized-base` adds this change when it restores the weight.
                    layer.weight.data = change

    return undo


def _change(layer: nn.Module, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the adapter's contribution to the weight."""
    change = up.detach().double() @ down.detach().double() * scale
    return change.t() if is_transposed(layer) else change


def _added(layer: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Save the layer without adapter matrices and with the merged weight."""
    for name in (DOWN, UP):
        state.pop(f"{prefix}{name}", None)
    name = f"{prefix}weight"
    if name in state:
        # On the host: a second copy of all weights may not fit on the GPU.
        down, up = (layer._parameters[each].detach().cpu() for each in (DOWN, UP))  # type: ignore[union-attr]
        before = state[name].detach().cpu()
        state[name] = before + _change(layer, down, up, layer.__dict__[_SCALE]).to(before.dtype)


def _begin_anew(layer: nn.Module, state: dict[str, Any], prefix: str, *_rest: Any) -> None:
    """Reset the adapter when a weight is loaded, since saved weights are merged."""
    if f"{prefix}weight" in state and f"{prefix}{UP}" not in state:
        with torch.no_grad():
            layer._parameters[UP].zero_()  # type: ignore[union-attr]
    for name in (DOWN, UP):
        state.setdefault(f"{prefix}{name}", layer._parameters[name])
