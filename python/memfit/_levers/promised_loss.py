"""Chunked cross-entropy over placeholder logits: computes and frees the logits of a few tokens at a time."""

from __future__ import annotations

import math
from typing import Any

import torch

from .piecewise import Pieces, cross_entropy
from .promise import root_of, state_of


def promised_loss(
    logits: Any,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    state = state_of(logits)
    deferred, shape = state.deferred, state.form.shape
    flat = deferred.second or len(shape) == 2
    if size_average is not None or reduce is not None or target.is_floating_point() or not flat:
        return NotImplemented
    # A trainable class weight would get no gradient here.
    if type(target) is not torch.Tensor or (weight is not None and weight.requires_grad):
        return NotImplemented
    rows = deferred.hidden.reshape(-1, deferred.hidden.shape[-1])
    labels = target.reshape(-1)
    if target.shape != ((shape[0], shape[2]) if len(shape) == 3 else shape[:1]):
        return NotImplemented
    if not len(rows) or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    deferred.moment.check()
    root_of(state).used = True
    deferred.target.takes_effect("chunked-loss")
    casts = deferred.casts
    if casts == (torch.float32,) and deferred.kind in (torch.float16, torch.bfloat16):
        casts = ()
    # Losses are summed in more than 16 bits. Under autocast, cross-entropy runs in fp32.
    after = torch.float32 if torch.is_autocast_enabled(deferred.hidden.device.type) else state.form.dtype
    compiled = deferred.target.compiled
    entropy = cross_entropy if compiled is None else compiled(cross_entropy)

    def loss(values: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        for cast in casts:
            values = values.to(cast)
        return entropy(
            values,
            wanted,
            True,
            weight=weight if weight is None else weight.to(torch.promote_types(weight.dtype, torch.float32)),
            ignore_index=ignore_index,
            reduction="none" if reduction == "none" else "sum",
            label_smoothing=label_smoothing,
        )

    pieces = Pieces(
        deferred.forward,
        loss,
        deferred.tokens,
        [learned for learned in deferred.head.parameters() if learned.requires_grad],
        deferred.linear,
        deferred.kind,
    )
    after = state.form.dtype if state.form.dtype == torch.float64 else after
    with torch.set_grad_enabled(torch.is_grad_enabled() and deferred.learns):
        if reduction == "none":
            return torch.cat(pieces.each(rows, labels)).view(target.shape).to(after)
        total = pieces.sum(rows, labels)
        mean = total if reduction == "sum" else _mean(total, labels != ignore_index, labels, weight)
        return mean.to(after)


def _mean(
    total: torch.Tensor, counted: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    if weight is None:
        count = counted.sum()
    else:
        own = weight[labels.where(counted, labels.new_zeros(()))]
        count = own.where(counted, weight.new_zeros(())).to(total.dtype).sum()
    # The mean over no labels is NaN, with a gradient of zero.
    nothing = ~counted.any()
    return total / count.masked_fill(nothing, 1) + total.new_zeros(()).masked_fill(nothing, math.nan)
