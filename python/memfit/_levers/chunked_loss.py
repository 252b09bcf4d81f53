"""`chunked-loss`: chunked cross-entropy; the full logits of a large vocabulary are never materialised.

The model's last linear layer returns a placeholder for its logits. Operations of training code on logits
before the loss (reshape, shift by one token, cast, moving the class dimension) are applied to the hidden
states, and `cross_entropy` runs chunk by chunk: the logits of some tokens, their loss, and its gradients. Any
other use of the placeholder computes the real logits, and in-place changes keep them from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .later import Moment, left_alone, may_wait
from .logits import make
from .promise import Deferred
from .registry import Stage, lever
from .several import models
from .target import CannotApply, Target, Undo, modules, table
from .wrapping import wrap

# Layers with fewer classes are not worth it.
MIN_CLASSES = 4096
# Bytes of fp32 logits that a chunk may always have.
_CHUNK_BYTES = 64 << 20
# Each chunk reads and casts the layer's weight, and accumulates its gradient. With fewer tokens in a chunk
# than this multiple of the layer's inputs, that takes longer than the logits. One eighth of all tokens is a
# small enough chunk if that is less.
_MIN_TOKENS_PER_INPUT = 2
_CHUNKS = 8
_NO_LOSS = (
    "no `cross_entropy` of these logits was computed that it can replace: with class numbers as targets, outside "
    "of compiled code"
)
_DROPOUT = nn.modules.dropout._DropoutNd


@lever("chunked-loss", Stage.MODEL, 90)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Defer the head's logits: `value` is the number of tokens per chunk, true for memfit's choice, or a
    table with `head` and `tokens`.
    """
    wanted = table(value, "tokens")
    head = modules(target, name, wanted["head"])[0] if wanted.get("head") else _head(target.model, name)
    if _is_computed(head):
        raise CannotApply(
            name,
            "the weight of the layer before the loss is recomputed before each call; use "
            "`torch.nn.utils.parametrizations`, or leave this lever out",
        )
    target.idle[name, ""] = _NO_LOSS
    asked = wanted.get("tokens")
    least = max(_CHUNK_BYTES // (4 * head.out_features), 64)

    def around(called: nn.Linear, forward: Callable[..., torch.Tensor], input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        if not _may_defer(called, input):
            return forward(input)
        rows = input.numel() // max(input.shape[-1], 1)
        tokens = asked or max(least, min(_MIN_TOKENS_PER_INPUT * input.shape[-1], rows // _CHUNKS))
        return _placeholder(forward, input, int(tokens), called, target)

    # The compiler stops before the placeholder and does not trace the loss.
    return wrap(head, left_alone(around))


def _may_defer(head: nn.Module, hidden: Any) -> bool:
    """Return `True` if logits of these inputs can be computed later, chunk by chunk."""
    if not may_wait() or type(hidden) is not torch.Tensor or hidden.dim() < 2 or _is_computed(head):
        return False
    # Each chunk, and the full logits, would have different dropout.
    if any(isinstance(each, _DROPOUT) and each.training and each.p for each in head.modules()):
        return False
    return hidden.requires_grad or any(weight.requires_grad for weight in head.parameters())


def _is_computed(head: nn.Module) -> bool:
    """Return `True` if a hook computes the layer's weight before each call, as older weight normalisation
    does.
    """
    made = head.__dict__.get("weight")
    return made is not None and not isinstance(made, nn.Parameter)


def _head(model: nn.Module, name: str) -> Any:
    """Return the layer that computes the logits: the model's output embeddings, or the layer with the most
    classes.
    """
    for each in models(model):
        known = getattr(each, "get_output_embeddings", None)
        found = known() if callable(known) else None
        if isinstance(found, nn.Linear):
            return found
    wide = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and module.out_features >= max(MIN_CLASSES, module.in_features)
    ]
    if not wide:
        raise CannotApply(
            name,
            f"no linear layer has at least {MIN_CLASSES} outputs; the lever's value `head=NAME` names one that computes logits",
        )
    widest = max(wide, key=lambda module: module.out_features)
    alike = sum(module.out_features == widest.out_features for module in wide)
    if alike > 1:
        raise CannotApply(
            name,
            f"{alike} linear layers have {widest.out_features} outputs, and it is not clear which of them, if any, "
            "computes logits for a cross-entropy; the lever's value `head=NAME` names it",
        )
    return widest


def _placeholder(
    forward: Callable[..., torch.Tensor], hidden: torch.Tensor, tokens: int, head: nn.Linear, target: Target
) -> torch.Tensor:
    place = hidden.device.type
    autocast = torch.is_autocast_enabled(place)
    # Autocast does not affect float64.
    kind = torch.get_autocast_dtype(place) if autocast and hidden.dtype != torch.float64 else hidden.dtype
    weights = list(head.parameters())
    whole = all(type(weight.data) is torch.Tensor for weight in weights)
    moment = Moment("chunked-loss", hidden.device, [hidden, *(weights if whole else ())])

    def as_then(inputs: torch.Tensor) -> torch.Tensor:
        """Run the layer as it would have run when it was called."""
        with moment.autocast():
            return forward(inputs)

    # True only if nothing but a matrix product runs, since other code around it is unknown here.
    plain = whole and type(head) is nn.Linear and getattr(forward, "__func__", None) is nn.Linear.forward
    plain = plain and {id(weight) for weight in weights} <= {id(head.weight), id(head.bias)}
    plain = plain and (autocast or head.weight.dtype == kind)
    deferred = Deferred(as_then, hidden, tokens, head, target, kind, moment, linear=head if plain else None)
    return make(deferred, torch.empty(*hidden.shape[:-1], head.out_features, dtype=kind, device="meta"))
