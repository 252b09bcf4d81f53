"""The gradients of another trainer's steps: everything of `memfit.Step` but the optimizer's step.

The trainer decides when an accumulation window ends, how its losses are scaled and what is done with the
gradients; micro-batches, verification, retries and rollback are those of `memfit.Step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .batches import Batch
from .part import Loss
from .result import Result
from .step import Step


class Gradients(Step):
    """Computes a trainer's gradients.

    `loss(model, batch)` returns the loss that the trainer would run backward, with its own scale;
    `backward(loss)` runs it. With `sums`, the losses of micro-batches add up to the batch's, because they
    are divided by a count of the whole window; otherwise they are means, weighted by samples or by
    `count(batch)` within their batch; with
    `over_window`, within the whole window, in place of the trainer's own scale.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        backward: Callable[[torch.Tensor], None],
        *,
        unseen: Callable[[], Callable[[], None]],
        note: Callable[[], Any] = lambda: None,
        count: Callable[[Any], float] | None = None,
        autocast: str | None = None,
        over_window: bool = False,
        **settings: Any,
    ) -> None:
        # Saves what the trainer itself counts, and returns a function that restores it.
        self._keep = unseen
        self._restore: Callable[[], None] | None = None
        self._newest: Batch | None = None
        # The `context` of each batch of the window, and of the batch that runs.
        self._contexts: dict[int, Any] = {}
        self.context: Any = None
        # Set once the newest batch's first micro-batch was tried.
        self._ran = False
        # The factors of the newest batch's micro-batches, and what the trainer returned for each.
        self.factors: list[float] = []
        self.notes: list[Any] = []
        self._note = note
        self._autocast = autocast
        self._over_window = over_window
        self.sums = False
        super().__init__(model, optimizer, self._compared(loss), count=count, **settings)
        if self._ranks.world > 1:
            self._planned.close()
            raise ValueError(
                "memfit's integrations run in a single process\n"
                "hint: on several ranks use `memfit.Step`, which exchanges gradients once all ranks have theirs"
            )
        if self._target.updates_in_backward:
            self._planned.close()
            raise ValueError(
                "`optimizer-in-backward` leaves no gradients for the trainer\nhint: leave this lever out"
            )
        self._runner.lend(self._trained(loss), backward, self._share)
        self._window.completion.lent = not over_window

    def _compared(self, loss: Loss) -> Loss:
        """Return the loss for comparisons, which leave nothing behind."""

        def compared(model: nn.Module, batch: Any) -> Any:
            restore = self._keep()
            try:
                return loss(model, batch)
            finally:
                restore()

        return compared

    def _trained(self, loss: Loss) -> Callable[[nn.Module, Any, Batch, int], Any]:
        """Return the loss for training: only the newest batch's last attempt counts."""

        def trained(model: nn.Module, batch: Any, entry: Batch, start: int) -> Any:
            self.context = self._contexts.get(id(entry), self.context)
            if entry is not self._newest:
                # The trainer has counted this batch before the window was restarted.
                return self._compared(loss)(model, batch)
            if start == 0:
                if self._ran and self._restore is not None:
                    self._restore()
                self._ran = True
                self.factors.clear()
                self.notes.clear()
            value = loss(model, batch)
            self.notes.append(self._note())
            return value

        return trained

    def _share(self, entry: Batch, part: Any, samples: int) -> float:
        """Return the factor of a micro-batch's loss."""
        factor = 1.0 if self.sums or samples == entry.items else self._part_of(entry, part, samples)
        if entry is self._newest:
            self.factors.append(factor)
        return factor * self._weight(entry.value) / self._controller.divisor if self._over_window else factor

    def _part_of(self, entry: Batch, part: Any, samples: int) -> float:
        if self._count is None:
            return samples / entry.items
        whole = self._weight(entry.value)
        return self._weight(part) / whole if whole else 0.0

    def _weight(self, batch: Any) -> float:
        counted = self._count(batch) if self._count is not None else self.entry(batch).items
        if isinstance(counted, Mapping):
            raise TypeError("`count=` returned several counts, but a trainer has one loss")
        return float(counted)

    def add(self, batch: Any, context: Any, *, ends: bool, sums: bool = False) -> Result:
        """Run a batch; if it `ends` its window, the gradients are complete afterwards. `context` is there
        when the batch runs, now or again.
        """
        if self._closed:
            raise RuntimeError("the training has ended: these gradients are closed")
        if self._target.arrivals:
            batch = self._target.arrive(batch)
        self.sums = sums
        self._division.lend(sums, self._autocast)
        entry = self.entry(batch)
        self._restore, self._newest, self._ran = self._keep(), entry, False
        if self._controller.empty:
            self._contexts.clear()
            self._window.begin()
        self._contexts[id(entry)], self.context = context, context
        self._window.add(entry, self._weight(batch) if self._over_window else float(entry.items))
        try:
            tally, retries, norm, _ = self._window.run(newest=True, whole=ends)
        except BaseException:
            self._drop()
            self._restore()
            raise
        finally:
            self._newest = None
        if ends:
            self._window.settle(keeps=True)
            self._watch.stepped(False)
        changed = tuple(dict.fromkeys(self._planned.changed + tally.changed))
        return Result(tally, retries, changed, ends, False, norm)

    @property
    def open(self) -> bool:
        """`True` between the batches of a window."""
        return not self._controller.empty

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters whose gradients are computed."""
        return self._parameters.all

    @property
    def measures_noise(self) -> bool:
        """`True` if the gradient noise scale is measured."""
        return self._noise is not None

    def close(self) -> None:
        """Undo all settings and levers. Some trainers end without a step for the last batches."""
        if not self._closed and self.open:
            self._window.settle(keeps=True)
            self._controller.abandon()
        super().close()

    def update(self, step: Callable[[], None]) -> None:
        """Run the optimizer's step completely or not at all."""
        self._updates.run(step, self._meter)
