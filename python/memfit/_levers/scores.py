"""Scores of attention that were put off: how they were written, and what attention they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from .later import Moment, learning


@dataclass(frozen=True)
class Step:
    """An operation as it was written, on what the one before it gave."""

    function: Callable[..., Any]
    rest: tuple[Any, ...]
    kwargs: dict[str, Any]
    moment: Moment

    def again(self, *before: torch.Tensor) -> torch.Tensor:
        self.moment.check()
        with self.moment.autocast():
            made: torch.Tensor = self.function(*before, *self.rest, **self.kwargs)
        return made


@dataclass(frozen=True)
class Scores:
    """What is known of scores that were put off."""

    query: torch.Tensor
    key: torch.Tensor
    # Everything that was done, for when it has to be done as it was written.
    steps: tuple[Step, ...]
    scale: float = 1.0
    # Where true, a pair counts; those that do not have this as their score.
    keep: torch.Tensor | None = None
    fill: float = float("-inf")
    # Added to the scores.
    bias: torch.Tensor | None = None
    softmax: bool = False
    dropout: float = 0.0

    def after(self, step: Step, **known: Any) -> Scores:
        """The scores after one operation more."""
        return replace(self, steps=(*self.steps, step), **known)

    def real(self) -> torch.Tensor:
        """The scores, or what became of them, as they were written."""
        first, *others = self.steps
        # No mode's rules hold within: what is computed here is not put off once more.
        with torch._C.DisableTorchFunction(), learning():
            value = first.again()
            for step in others:
                value = step.again(value)
        return value

    def attend(self, value: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            step.moment.check()
        query, mask = self.query, self.keep
        if mask is not None and mask.dim() < 2:
            mask = mask.expand(*([1] * (query.dim() - mask.dim())), *mask.shape)
        if mask is not None and self.fill != float("-inf"):
            # Where no pair of a row counts, all of them do alike, and queries and keys learn nothing.
            some = mask.any(-1, keepdim=True)
            query, mask = query.masked_fill(~some, 0.0), mask | ~some
        if self.bias is not None:
            added = self.bias.to(self._kind())
            mask = added if mask is None else added.masked_fill(~mask, float("-inf"))
            if mask.dim() < 2:
                mask = mask.expand(*([1] * (query.dim() - mask.dim())), *mask.shape)
        return functional.scaled_dot_product_attention(
            query, self.key, value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )

    def _kind(self) -> torch.dtype:
        """The type that attention is computed in."""
        place, kind = self.query.device.type, self.query.dtype
        if torch.is_autocast_enabled(place) and kind != torch.float64:
            kind = torch.get_autocast_dtype(place)
        return kind
