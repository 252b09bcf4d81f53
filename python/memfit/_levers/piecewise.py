"""Cross-entropy over logits that are computed chunk by chunk.

If a single factor scales the gradients of all tokens, the gradients of the layer's inputs and weights are
computed right after each chunk's loss, while its logits exist, and scaled once the backward pass knows the
factor: logits are computed only once. In fp16 that factor (the loss scale) keeps small gradients from
vanishing, and without reduction each token has its own factor: then the chunks are recomputed in the backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .later import nothing_around

_SIXTEEN = (torch.float16, torch.bfloat16)
Gradients = list[torch.Tensor | None]


@dataclass(frozen=True)
class Pieces:
    """A loss over logits in chunks."""

    # Computes the logits of some inputs.
    forward: Callable[[torch.Tensor], torch.Tensor]
    # Computes the loss of some logits and their labels.
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    # Tokens per chunk.
    tokens: int
    # The layer's trained parameters.
    weights: list[torch.Tensor]
    # The layer, if it is a plain matrix product in this data type.
    linear: nn.Linear | None
    kind: torch.dtype

    def sum(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the chunks' losses."""
        if not torch.is_grad_enabled():
            return torch.stack(self.each(rows, labels)).sum()
        if self.kind == torch.float16:
            return torch.stack(self.each(rows, labels)).sum()
        total: torch.Tensor = _AtOnce.apply(self, labels, rows, *self.weights)
        return total

    def each(self, rows: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        """Return the chunks' losses, which are recomputed in the backward pass."""

        def piece(part: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return self.loss(self.forward(part), wanted)

        if not torch.is_grad_enabled():
            pairs = zip(rows.split(self.tokens), labels.split(self.tokens), strict=True)
            return [piece(part, wanted) for part, wanted in pairs]
        # A plain matrix product draws no random numbers; other layers may.
        drawn = self.linear is None
        return [
            checkpoint(piece, part, wanted, use_reentrant=False, preserve_rng_state=drawn)
            for part, wanted in zip(rows.split(self.tokens), labels.split(self.tokens), strict=True)
        ]


def cross_entropy(values: torch.Tensor, labels: torch.Tensor, wide: bool, **settings: Any) -> torch.Tensor:
    """Compute `torch`'s cross-entropy; with `wide`, of 16-bit logits in fp32 without an fp32 copy of them."""
    if not wide or values.dtype not in _SIXTEEN:
        return functional.cross_entropy(values, labels, **settings)
    if settings["label_smoothing"]:
        return functional.cross_entropy(values.float(), labels, **settings)
    del settings["label_smoothing"]
    return functional.nll_loss(functional.log_softmax(values, -1, dtype=torch.float32), labels, **settings)


class _AtOnce(torch.autograd.Function):
    """Computes a sum over chunks together with its gradients."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Pieces, labels: torch.Tensor, rows: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        of_rows, of_weights = ctx.needs_input_grad[2], ctx.needs_input_grad[3:]
        learned = [weight for weight, wanted in zip(weights, of_weights, strict=True) if wanted]
        one = _Linear(pieces, learned) if pieces.linear is not None else _Any(pieces, learned)
        of_parts, losses = [], []
        # Tensors saved here are freed here: hooks that offload or recompute saved tensors do not see them.
        with nothing_around():
            for part, wanted in zip(rows.split(pieces.tokens), labels.split(pieces.tokens), strict=True):
                loss, of_part = one(part, wanted, of_rows)
                losses.append(loss)
                of_parts.append(of_part)
        rest = iter(one.gradients())
        ctx.gradients = [
            torch.cat(of_parts) if of_rows else None,
            *(next(rest) if wanted else None for wanted in of_weights),
        ]
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *factors: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "`chunked-loss` does not support second derivatives (`create_graph=True`)\n"
                "hint: leave this lever out"
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError(
                "`chunked-loss` frees its gradients in the backward pass, and a second backward pass was "
                "run\n"
                "hint: leave this lever out"
            )
        return None, None, *(each if each is None else each.mul_(factors[0]) for each in gradients)


class _Any:
    """Chunks through any layer."""

    def __init__(self, pieces: Pieces, learned: list[torch.Tensor]) -> None:
        self._pieces = pieces
        self._learned = learned
        self._added: Gradients = [None] * len(learned)
        self._known = False

    def __call__(
        self, part: torch.Tensor, wanted: torch.Tensor, of_part: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a chunk's loss and the gradient of its inputs."""
        with torch.enable_grad():
            leaf = part.detach().requires_grad_(of_part)
            loss = self._pieces.loss(self._pieces.forward(leaf), wanted)
        if not self._known:
            _nothing_else(loss, [leaf, *self._pieces.weights])
            self._known = True
        asked = ([leaf] if of_part else []) + self._learned
        found: Gradients = list(torch.autograd.grad(loss, asked, allow_unused=True)) if asked else []
        of_leaf = found.pop(0) if of_part else None
        known: set[int] = set()
        for index, more in enumerate(found):
            before = self._added[index]
            if more is None:
                continue
            if before is not None:
                before.add_(more)
                continue
            # A gradient that is accumulated into must not be shared: gradients of a sum's terms are one
            # tensor.
            own = type(more) is torch.Tensor and more.is_contiguous() and more.data_ptr() not in known
            known.update([more.data_ptr()] if own else [])
            self._added[index] = more if own else more.clone()
        return loss.detach(), of_leaf

    def gradients(self) -> Gradients:
        """Return the weights' gradients, summed over the chunks."""
        return self._added


def _nothing_else(loss: torch.Tensor, known: list[torch.Tensor]) -> None:
    """Check that a loss depends on no other trained tensors, which would get no gradient."""
    ids = {id(each) for each in known}
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in ids:
            raise RuntimeError(
                "`chunked-loss` does not support the layer before the loss, which uses more than its own "
                "parameters\n"
                "hint: leave this lever out"
            )
        waiting += [above for above, _ in node.next_functions]


class _Linear:
    """Chunks through a plain matrix product: the weight is cast once, and gradients accumulate in the
    product.
    """

    def __init__(self, pieces: Pieces, learned: list[torch.Tensor]) -> None:
        assert pieces.linear is not None
        self._pieces = pieces
        self._learned = learned
        self._layer = pieces.linear
        self._weight = self._layer.weight.detach().to(pieces.kind)
        self._bias = None if self._layer.bias is None else self._layer.bias.detach().to(pieces.kind)
        self._added: dict[int, torch.Tensor] = {}

    def __call__(
        self, part: torch.Tensor, wanted: torch.Tensor, of_part: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a chunk's loss and the gradient of its inputs."""
        inputs = part.detach().to(self._pieces.kind)
        with torch.autocast(part.device.type, enabled=False):
            values = functional.linear(inputs, self._weight, self._bias)
        with torch.enable_grad():
            loss = self._pieces.loss(values.requires_grad_(), wanted)
        (of_values,) = torch.autograd.grad(loss, values)
        with torch.autocast(part.device.type, enabled=False):
            for weight in self._learned:
                self._add(weight, of_values, inputs)
            return loss.detach(), (of_values @ self._weight).to(part.dtype) if of_part else None

    def _add(self, weight: torch.Tensor, of_values: torch.Tensor, inputs: torch.Tensor) -> None:
        before = self._added.get(id(weight))
        if weight is self._layer.bias:
            more = of_values.sum(0).to(weight.dtype)
            self._added[id(weight)] = more if before is None else before.add_(more)
        elif before is None:
            self._added[id(weight)] = (of_values.t() @ inputs).to(weight.dtype)
        elif before.dtype == of_values.dtype:
            before.addmm_(of_values.t(), inputs)
        else:
            before.add_(of_values.t() @ inputs)

    def gradients(self) -> Gradients:
        """Return the weights' gradients, summed over the chunks."""
        return [self._added[id(weight)] for weight in self._learned]
