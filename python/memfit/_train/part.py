"""Forward and backward pass of one micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from memfit import _core
from memfit._levers import Target

from .batches import Batch
from .buffers import Buffers
from .caching import EmbeddingLoss, GradientCache, propagate
from .division import Division
from .graph import node_number
from .losses import Losses
from .noise import Noise
from .precision import Precision, within
from .tally import Tally, Weighed, read_losses, refuse_share, scalar, split_metrics

Loss = Callable[[nn.Module, Any], Any]
# Arguments: the model, the micro-batch, its batch and its first sample; the loss; the batch, the micro-batch
# and its number of samples.
Lent = tuple[
    Callable[[nn.Module, Any, Batch, int], Any],
    Callable[[torch.Tensor], None],
    Callable[[Batch, Any, int], float],
]
# A loss's name, its share of the window's loss, the loss it was computed from, the divisor, and the count.
Share = tuple[str, torch.Tensor, torch.Tensor, float, float]


class Runner:
    """Runs micro-batches, and divides their losses by the count of their window."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        count: Callable[[Any], Any] | None,
        controller: _core.Controller,
        precision: Precision,
        target: Target,
        division: Division,
        place: torch.device | None,
        embedded: EmbeddingLoss | None = None,
    ) -> None:
        self._model = model
        # Set for a loss that compares samples.
        self._embedded = embedded
        self._buffers = Buffers(model)
        # The divided batch whose loss was computed from its embeddings, and its count.
        self._cached: GradientCache | None = None
        self._counts = 0.0
        self._loss = loss
        self._count = count
        self._controller = controller
        self._precision = precision
        self._target = target
        self._division = division
        # The device that micro-batches are moved to; `None` if the model moves them itself.
        self._place = place
        # Counts of several losses in the open window.
        self.losses = Losses()
        # Set once the returned pair was checked not to be a loss and a metric.
        self._checked_share = False
        # Another trainer's forward and backward pass, and the factor of a micro-batch's loss.
        self._lent: Lent | None = None
        # Measures the noise of gradients, if the user asked for it.
        self.noise: Noise | None = None
        # Copy each micro-batch, because the model or the loss writes to it.
        self.own = False

    def lend(self, loss: Any, backward: Any, share: Any) -> None:
        """Run another trainer's loss and backward pass, and multiply each loss by its `share`."""
        self._lent = loss, backward, share

    @property
    def caches(self) -> bool:
        """`True` if a divided batch's loss is computed from the embeddings of all its micro-batches."""
        return self._embedded is not None

    def embed_all(
        self, entry: Batch, parts: list[tuple[int, int]], tally: Tally, opens: float, device: torch.device
    ) -> None:
        """Embed all micro-batches of a batch, and compute the gradient of its loss with respect to the
        embeddings.
        """
        assert self._embedded is not None
        cached = GradientCache(self._embedded.embed, self._model, device, self._around)
        self._buffers.keep()
        for start, stop in parts:
            cached.embed(self._part(entry, start, stop), start, stop)
        # Each micro-batch is embedded once more, which updates the buffers again.
        self._buffers.restore()
        whole = self._part(entry, 0, entry.items)
        with self._around():
            returned = self._embedded.loss(cached.leaves(), whole)
        loss, self._counts = self._loss_and_count(entry, returned, whole, entry.items, tally, opens, False)
        self._backward(loss)
        cached.take_gradients()
        self._cached = cached

    def drop(self) -> None:
        """Drop the embeddings of a previous attempt."""
        self._cached = None

    def _run_cached(self, entry: Batch, start: int, stop: int, tally: Tally) -> None:
        """Run a micro-batch's backward pass from the gradients of its embeddings."""
        assert self._cached is not None
        propagate(self._cached.embed_again(start, self._part(entry, start, stop)))
        self._division.raise_pending()
        tally.parts += 1
        if stop == entry.items:
            self._cached.restore_random_state()
            self._cached = None
            self._controller.count(self._counts)

    def run(
        self, entry: Batch, start: int, stop: int, tally: Tally, *, opens: float = 0.0, idle: bool = False
    ) -> None:
        """Run forward and backward of the samples from start to stop. With `idle`, the result does not count
        and only keeps other ranks from waiting. `opens` is the number of batches in the window that this
        micro-batch starts: if only the loss function knows the count, it is estimated for the whole window
        from here.
        """
        if self._cached is not None:
            self._run_cached(entry, start, stop, tally)
            return
        samples = stop - start
        whole = samples == entry.items
        part = self._part(entry, start, stop)
        before = None if whole or idle else node_number()
        if self._lent is None:
            returned = self._forward(part)
        else:
            with self._around():
                returned = self._lent[0](self._model, part, entry, start)
        if before is not None:
            tally.changed += self._division.check_path(entry, start, samples, before, returned)
        loss, main = self._loss_and_count(entry, returned, part, samples, tally, opens, idle or entry.void)
        if idle or entry.void:
            self._backward(loss * 0.0)
            return
        if self.noise is None:
            self._backward(loss)
        else:
            with self.noise.part(main, self._unit(returned)):
                self._backward(loss)
        self._division.raise_pending()
        self._controller.count(main)
        tally.parts += 1

    def _part(self, entry: Batch, start: int, stop: int) -> Any:
        part = entry.part(start, stop, self._place, self.own)
        return self._target.prepare(part) if self._target.preparations else part

    def _backward(self, loss: torch.Tensor) -> None:
        if self._lent is not None:
            self._lent[1](loss)
            return
        scaler = self._precision.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()

    def _unit(self, returned: Any) -> str | None:
        """Return what the main count counts; `None` for several losses with counts of their own."""
        returned, _ = split_metrics(returned)
        if isinstance(returned, Mapping):
            return None
        return "samples" if isinstance(returned, torch.Tensor) and self._count is None else "counted items"

    def _loss_and_count(
        self, entry: Batch, returned: Any, part: Any, samples: int, tally: Tally, opens: float, idle: bool
    ) -> tuple[torch.Tensor, float]:
        """Return the loss that a loss function returned, and its count."""
        returned, metrics = split_metrics(returned)
        if metrics and not idle:
            tally.add_metrics(samples, metrics)
        if self._lent is not None:
            main, value, factor = float(samples), scalar(returned), self._lent[2](entry, part, samples)
            loss = value if factor == 1.0 else value * factor
            if factor == 0.0:
                # The mean over a count of zero is NaN, and so is its gradient.
                loss = torch.zeros_like(value).requires_grad_()
            # Counts that add up to the divisor: the shares are added as they are.
            shares = [("", loss, value, float(entry.items), main)]
            main = main if self._count is None else float(self._count(part))
        elif self._count is None and isinstance(returned, torch.Tensor):
            # The usual case: a single mean over samples.
            main, value, divisor = float(samples), scalar(returned), self._controller.divisor
            loss = value if main == divisor else value * (main / divisor)
            shares = [("", loss, value, divisor, main)]
        else:
            loss, main, shares = self._several(entry, returned, part, samples, opens, idle)
        if not loss.requires_grad:
            raise RuntimeError(
                "the loss has no gradient: it was computed under `no_grad`, or detached\n"
                "hint: return the loss itself from the loss function, without `.item()` or `.detach()`"
            )
        for name, share, value, divisor, count in shares:
            if idle:
                tally.add(name, torch.zeros_like(share, requires_grad=False), divisor, 0.0)
                continue
            # The loss function may write its next result to the same memory.
            kept = share.detach()
            tally.add(name, kept.clone() if share is value else kept, divisor, count)
        return loss, main

    def _forward(self, part: Any) -> Any:
        if self._precision.name is None and not self._target.contexts:
            return self._loss(self._model, part)
        with self._around():
            return self._loss(self._model, part)

    def _around(self) -> contextlib.AbstractContextManager[None]:
        return within(self._precision, self._target)

    def _several(
        self, entry: Batch, returned: Any, part: Any, samples: int, opens: float, idle: bool
    ) -> tuple[torch.Tensor, float, list[Share]]:
        """Return the micro-batch's loss, its count and its shares, for several losses or
        user-defined counts.
        """
        if not self._checked_share:
            self._checked_share = True
            refuse_share(returned, samples)
        counted = self._count(part) if self._count is not None else float(samples)
        losses, counts = read_losses(returned, counted)
        if isinstance(returned, Mapping):
            return self._named(entry, losses, counts, samples, opens, idle)
        (value, weight), main = losses[""], counts[""]
        if opens and self._count is None:
            # The count per sample is known only now; the whole window is assumed to be like its first
            # micro-batch.
            self._controller.divide_by(main / samples * entry.items * opens)
        divisor = self._controller.divisor
        share = value if weight == divisor else value * (weight / divisor)
        return share, main, [("", share, value, divisor, main)]

    def _named(
        self,
        entry: Batch,
        losses: dict[str, Weighed],
        counts: dict[str, float],
        samples: int,
        opens: float,
        idle: bool,
    ) -> tuple[torch.Tensor, float, list[Share]]:
        """The same for losses that each have their own mean."""
        # A batch that runs undivided provides its own counts.
        whole = counts if samples == entry.items else entry.counts
        first = next(filter(None, (whole or {}).values()), 0.0) * opens
        if not idle:
            self.losses.divide(whole or counts, first or self._controller.divisor)
            self.losses.divide(counts, self._controller.divisor)
            self.losses.count(counts)
        loss: torch.Tensor | None = None
        shares: list[Share] = []
        for name, (value, weight) in losses.items():
            # A loss with count zero adds nothing but stays in the graph: other ranks may wait in its backward
            # pass.
            divisor = self.losses.divisors.get(name, 1.0)
            factor = weight / divisor if counts[name] else 0.0
            share = value if factor == 1.0 else value * factor
            loss = share if loss is None else loss + share
            # The mean over a count of zero is NaN.
            counted = share if counts[name] else torch.zeros_like(share)
            shares.append((name, counted, value, divisor, counts[name]))
        assert loss is not None
        # Only shows that something ran: each loss has its own count.
        return loss, float(samples), shares
