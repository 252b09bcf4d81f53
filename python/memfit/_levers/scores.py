"""Deferred attention scores: the operations that compute them, and the equivalent attention call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from .later import Moment, learning


@dataclass(frozen=True)
class Step:
    """An operation of the script, applied to the result of the previous one."""

    function: Callable[..., Any]
    rest: tuple[Any, ...]
    kwargs: dict[str, Any]
    moment: Moment

    def repeat(self, *before: torch.Tensor) -> torch.Tensor:
        self.moment.check()
        with self.moment.autocast():
            made: torch.Tensor = self.function(*before, *self.rest, **self.kwargs)
        return made


@dataclass(frozen=True)
class Scores:
    """Attention scores that were deferred: their operands, and the operations that compute them."""

    query: torch.Tensor
    key: torch.Tensor
    # All operations so far, in case the scores have to be computed.
    steps: tuple[Step, ...]
    # Called when they become attention.
    found: Callable[[], None]
    scale: float = 1.0
    # Mask of the pairs that count, and the score of all others.
    keep: torch.Tensor | None = None
    fill: float = float("-inf")
    # Added to the scores.
    bias: torch.Tensor | None = None
    softmax: bool = False
    dropout: float = 0.0

    def after(self, step: Step, **known: Any) -> Scores:
        """Return the scores after one more operation."""
        return replace(self, steps=(*self.steps, step), **known)

    def real(self) -> torch.Tensor:
        """Compute the scores, with all operations so far."""
        first, *others = self.steps
        # Function modes are disabled within, so that nothing is deferred again.
        with torch._C.DisableTorchFunction(), learning():
            value = first.repeat()
            for step in others:
                value = step.repeat(value)
        return value

    def attend(self, value: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            step.moment.check()
        self.found()
        query, mask = self.query, self.keep
        if mask is not None and mask.dim() < 2:
            mask = mask.expand(*([1] * (query.dim() - mask.dim())), *mask.shape)
        if mask is not None and self.fill != float("-inf"):
            # In a fully masked row all pairs count equally, and queries and keys get no gradient.
            some = mask.any(-1, keepdim=True)
            query, mask = query.masked_fill(~some, 0.0), mask | ~some
        if self.bias is not None:
            added = self.bias.to(self._kind())
            mask = added if mask is None else added.masked_fill(~mask, float("-inf"))
            if mask.dim() < 2:
                mask = mask.expand(*([1] * (query.dim() - mask.dim())), *mask.shape)
        # The kernels without an attention matrix take four dimensions, and rows that are contiguous.
        is_single = query.dim() == 3
        if is_single and mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        query, key, value = (
            _with_contiguous_rows(each.unsqueeze(1) if is_single else each)
            for each in (query, self.key, value)
        )
        made = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )
        return made.squeeze(1) if is_single else made

    def _kind(self) -> torch.dtype:
        """Return the data type in which attention is computed."""
        device, kind = self.query.device.type, self.query.dtype
        if torch.is_autocast_enabled(device) and kind != torch.float64:
            kind = torch.get_autocast_dtype(device)
        return kind


def _with_contiguous_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
