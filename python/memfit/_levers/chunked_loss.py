"""`chunked-loss`: the logits of a large vocabulary are never there as a whole.

The model's last linear layer gives a promise of its logits instead of them. What training code does with
logits before the loss (reshape, shift by one token, cast, move the classes' dimension) is done to the hidden
states, and `cross_entropy` runs piece by piece: logits of so many tokens, their loss, and its gradients.
Whatever else is asked of the promise is answered by the real logits, computed then as they would have been;
from what changes them on, these are all that there is.
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

# A layer with fewer classes makes no logits that are worth it.
LEAST_CLASSES = 4096
# Bytes of fp32 logits that a piece may always have.
_PIECE = 64 << 20
# For each piece the layer's weight is read, cast, and its gradient added up: with fewer tokens in a piece
# than this many times the layer's inputs, that takes longer than the logits do. A part of all tokens is small
# enough where that is more.
_TOKENS_PER_INPUT = 2
_PARTS = 8
_DROPOUT = nn.modules.dropout._DropoutNd


@lever("chunked-loss", Stage.MODEL, 90)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Defer the head's logits: `value` is the tokens in a piece, true for memfit's choice, or a table with
    `head` and `tokens`.
    """
    wanted = table(value, "tokens")
    head = modules(target, name, wanted["head"])[0] if wanted.get("head") else _head(target.model, name)
    if _made_elsewhere(head):
        raise CannotApply(
            name,
            "the weight of the layer before the loss is computed before each call; use `torch.nn.utils.parametrizations`, or"
            " leave this lever out",
        )
    asked = wanted.get("tokens")
    least = max(_PIECE // (4 * head.out_features), 64)

    def around(called: nn.Linear, forward: Callable[..., torch.Tensor], input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        if not _may_promise(called, input):
            return forward(input)
        rows = input.numel() // max(input.shape[-1], 1)
        tokens = asked or max(least, min(_TOKENS_PER_INPUT * input.shape[-1], rows // _PARTS))
        return _promise(forward, input, int(tokens), called, target)

    # A compiled model stops before the promise, and leaves its loss to this.
    return wrap(head, left_alone(around))


def _may_promise(head: nn.Module, hidden: Any) -> bool:
    """Whether logits of these inputs can be made later, a piece at a time."""
    if not may_wait() or type(hidden) is not torch.Tensor or hidden.dim() < 2 or _made_elsewhere(head):
        return False
    # Each piece, and the logits as a whole, would be dropped out in a way of their own.
    if any(isinstance(each, _DROPOUT) and each.training and each.p for each in head.modules()):
        return False
    return hidden.requires_grad or any(weight.requires_grad for weight in head.parameters())


def _made_elsewhere(head: nn.Module) -> bool:
    """Whether the layer's weight is no parameter but made of some by a hook before it, as older normalisation
    of weights is.
    """
    made = head.__dict__.get("weight")
    return made is not None and not isinstance(made, nn.Parameter)


def _head(model: nn.Module, name: str) -> Any:
    """The layer that makes the logits: what the model says it is, or the one with by far the most classes."""
    for each in models(model):
        known = getattr(each, "get_output_embeddings", None)
        found = known() if callable(known) else None
        if isinstance(found, nn.Linear):
            return found
    wide = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and module.out_features >= max(LEAST_CLASSES, module.in_features)
    ]
    if not wide:
        raise CannotApply(
            name, f"no linear layer has {LEAST_CLASSES} classes or more; name it with `head` if there is one"
        )
    widest = max(wide, key=lambda module: module.out_features)
    if sum(module.out_features == widest.out_features for module in wide) > 1:
        raise CannotApply(
            name, "several layers have as many classes; name the one before the loss with `head`"
        )
    return widest


def _promise(
    forward: Callable[..., torch.Tensor], hidden: torch.Tensor, tokens: int, head: nn.Linear, target: Target
) -> torch.Tensor:
    place = hidden.device.type
    autocast = torch.is_autocast_enabled(place)
    # Autocast leaves float64 alone.
    kind = torch.get_autocast_dtype(place) if autocast and hidden.dtype != torch.float64 else hidden.dtype
    weights = list(head.parameters())
    whole = all(type(weight.data) is torch.Tensor for weight in weights)
    moment = Moment("chunked-loss", hidden.device, [hidden, *(weights if whole else ())])

    def as_then(inputs: torch.Tensor) -> torch.Tensor:
        """The layer as it would have run where it was called."""
        with moment.autocast():
            return forward(inputs)

    # What else stands around its product of matrices is not known here.
    plain = whole and type(head) is nn.Linear and getattr(forward, "__func__", None) is nn.Linear.forward
    plain = plain and {id(weight) for weight in weights} <= {id(head.weight), id(head.bias)}
    plain = plain and (autocast or head.weight.dtype == kind)
    deferred = Deferred(as_then, hidden, tokens, head, target, kind, moment, linear=head if plain else None)
    return make(deferred, torch.empty(*hidden.shape[:-1], head.out_features, dtype=kind, device="meta"))
