"""Gradient caching: contrastive losses, which compare the samples of a batch, computed in micro-batches.

Micro-batches are embedded without a graph, the loss sees the embeddings of the whole batch, and its gradient
with respect to them is propagated through each micro-batch, which is embedded once more with the same random
numbers. Memory for one micro-batch is enough for the network, and the loss is that of the whole batch (Gao et
al. 2021, "GradCache").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map_only

from .joining import join
from .randomness import RandomState

Embed = Callable[[nn.Module, Any], Any]
Around = Callable[[], contextlib.AbstractContextManager[Any]]


class EmbeddingLoss(NamedTuple):
    """A loss that compares samples, in two functions: `embed` runs the network on a micro-batch, and `loss`
    takes the embeddings of the whole batch.
    """

    embed: Embed
    loss: Callable[[Any, Any], Any]

    def of_whole_batch(self, model: nn.Module, batch: Any) -> Any:
        """Compute the loss of a batch that is not split."""
        return self.loss(self.embed(model, batch), batch)


class GradientCache:
    """State of one batch: the embeddings of its micro-batches, and the gradients of the loss with respect to
    them.
    """

    def __init__(self, embed: Embed, model: nn.Module, device: torch.device, around: Around) -> None:
        self._embed = embed
        self._model = model
        self._device = device
        # The context of the network and the loss: autocast, and contexts of levers.
        self._around = around
        self._parts: list[Any] = []
        self._sizes: list[int] = []
        # End and random state before embedding, by the start of each micro-batch.
        self._micro_batches: dict[int, tuple[int, RandomState]] = {}
        self._leaves: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor | None] = []
        self._state_after_loss: RandomState | None = None

    def embed(self, part: Any, start: int, stop: int) -> None:
        """Embed a micro-batch without a graph."""
        self._micro_batches[start] = stop, RandomState([self._device])
        with torch.no_grad():
            self._parts.append(self._run(part))
        self._sizes.append(stop - start)

    def leaves(self) -> Any:
        """Return the embeddings of the whole batch as leaf tensors, for which backward computes gradients."""
        joined = tree_map_only(torch.Tensor, _leaf, join(self._parts, self._sizes))
        self._parts.clear()
        self._leaves = [each for each in tree_flatten(joined)[0] if isinstance(each, torch.Tensor)]
        for leaf in self._leaves:
            if leaf.dim() == 0 or leaf.size(0) != sum(self._sizes):
                raise ValueError(
                    f"`embed` returned a tensor of shape {list(leaf.shape)} for {sum(self._sizes)} samples\n"
                    "hint: return tensors whose first dimension is the batch dimension"
                )
        return joined

    def take_gradients(self) -> None:
        """Take the gradients of the leaves, after the loss's backward pass."""
        self._gradients = [leaf.grad for leaf in self._leaves]
        self._leaves = []
        self._state_after_loss = RandomState([self._device])

    def embed_again(self, start: int, part: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Embed a micro-batch once more, with a graph and the same random numbers. Return pairs of an output
        and its gradient.
        """
        stop, state = self._micro_batches[start]
        state.restore()
        outputs = [each for each in tree_flatten(self._run(part))[0] if isinstance(each, torch.Tensor)]
        pairs = [
            (output, gradient[start:stop])
            for output, gradient in zip(outputs, self._gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs:
            raise RuntimeError(
                "the loss has no gradient with respect to the embeddings: the loss or `embed` ran under "
                "`no_grad`, or on detached tensors\n"
                "hint: return the network's outputs from `embed`, and the loss itself from `loss`"
            )
        return pairs

    def restore_random_state(self) -> None:
        """Restore the random state after the loss, once all micro-batches have run."""
        if self._state_after_loss is not None:
            self._state_after_loss.restore()

    def _run(self, part: Any) -> Any:
        with self._around():
            return self._embed(self._model, part)


def propagate(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Propagate the gradients of a micro-batch's embeddings through the network."""
    torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex())
