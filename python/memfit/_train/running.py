"""Runs some samples of a batch, whole or in micro-batches, and returns what they compute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from memfit._levers import Target

from .caching import EmbeddingLoss, GradientCache, propagate
from .comparing import wide
from .differences import Outcome
from .graph import Kink, kinks, node_number, tail
from .outside import Outside
from .parameters import Parameters
from .precision import Precision, within
from .tally import share_of, split_metrics
from .trial import Trial
from .undoing import Undoing
from .variation import Constant


class Runner:
    """Runs samples without side effects."""

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[nn.Module],
        loss: Callable[[nn.Module, Any], Any],
        count: Callable[[Any], Any] | None,
        parameters: Parameters,
        precision: Precision,
        outside: Outside,
        target: Target,
        place: torch.device | None,
        device: torch.device,
        *,
        pairs: bool,
        widens: bool,
        embedded: EmbeddingLoss | None = None,
    ) -> None:
        self._model = model
        self._modules = [model, *modules]
        self._loss = loss
        self._count = count
        self._parameters = parameters
        self._precision = precision
        self._outside = outside
        self._target = target
        self._place = place
        self._device = device
        self._undoing = Undoing(model, modules, parameters, outside, device)
        # Avoid micro-batches of one sample where possible.
        self._pairs = pairs
        # `True` if parameters may be converted to float64 in place; not if other code refers to their
        # gradient accumulators.
        self._widens = widens
        # For a loss that compares samples: its micro-batches are embedded first.
        self._embedded = embedded
        # Numbers of autograd nodes made by a forward pass, with its last operations: equal ones mean that it
        # took the same path.
        self.paths: set[Any] = set()
        # Set if the losses of micro-batches add up to that of their batch.
        self.sums = False
        # Precision of another trainer's own autocast, which leaves float64 alone.
        self.autocast: str | None = None
        # Constants that values of a batch were compared with.
        self.constants: set[Constant] = set()
        # Continue Python's and NumPy's random numbers from micro-batch to micro-batch.
        self._goes_on = False
        # Restore state before each micro-batch.
        self._is_fresh = False
        # Set if the last whole run drew such numbers.
        self._drew = False
        self._kinks: list[list[Kink]] = []

    def _run(self, trial: Trial, before: Trial | None = None) -> Outcome:
        """Run samples forward and backward, in the state that another run leaves, if one is given."""
        self._undoing.begin()
        self._kinks = []
        run = self._run_parts if self._embedded is None or len(trial.sizes) == 1 else self._run_embedded
        try:
            if before is not None:
                self._run_parts(before)
                self._undoing.drop_gradients()
                self._undoing.numbers.restore()
                self._kinks = []
            if trial.advanced is not None:
                self._outside.advance(*trial.advanced)
            total, counted = run(trial)
            return Outcome(
                self._undoing.gradients(),
                total,
                counted,
                {} if self._is_fresh else self._undoing.state(),
                self._outside.numbers(),
                self._outside.unmoved(),
                self._kinks,
            )
        finally:
            # Also after an error, or the next run would begin with what this one wrote.
            self._undoing.end()

    def _run_parts(self, trial: Trial) -> tuple[float, dict[str, float]]:
        total = 0.0
        counted: dict[str, float] = {}
        for start, stop in trial.bounds():
            part = self._part(trial, start, stop)
            mode = trial.compare(start, stop)
            with mode, self._outside.watch(self._undoing.known(part)):
                part = self._prepared(part)
                before = node_number()
                with self._around():
                    returned = self._loss(self._model, part)
                mode.end_forward()
                loss = split_metrics(returned)[0]
                if not (trial.is_wide or trial.opposite or trial.otherwise) and before is not None:
                    self.paths.add(((node_number() or 0) - before, tail(loss)))
                self._kinks.append(kinks(loss))
                value, share, own_counts = self._share(returned, part, stop - start, trial.counts)
                if trial.is_wide and value.dtype != torch.float64:
                    # The loss function rounds in between, by more than a comparison in float64 allows.
                    raise TypeError(f"the loss is {value.dtype}")
                if value.requires_grad:
                    self._undoing.set_aside(value)
                    value.backward()
            for name, number in own_counts.items():
                counted[name] = counted.get(name, 0.0) + number
            total += share
            if len(trial.sizes) == 1:
                self._drew = self._undoing.numbers.host_drew()
            if not self._goes_on:
                self._undoing.numbers.restore()
            if self._is_fresh:
                self._undoing.restore_buffers()
                self._outside.restore()
        return total, counted

    def _run_embedded(self, trial: Trial) -> tuple[float, dict[str, float]]:
        """Run a loss that compares samples: embed each micro-batch, and again for its backward pass."""
        assert self._embedded is not None
        items = len(trial.samples)
        cached = GradientCache(self._embedded.embed, self._model, self._device, self._around)
        parts: dict[tuple[int, int], Any] = {}
        for start, stop in trial.bounds():
            part = self._part(trial, start, stop)
            mode = trial.compare(start, stop)
            with mode, self._outside.watch(self._undoing.known(part)):
                part = self._prepared(part)
                cached.embed(part, start, stop)
            parts[start, stop] = part
            if not self._goes_on:
                self._undoing.numbers.restore()
        self._undoing.restore_buffers()
        whole = self._part(trial, 0, items)
        of_loss = trial.compare(0, items)
        of_loss.goes_on_from(mode)
        with of_loss, self._outside.watch(self._undoing.known(whole)):
            whole = self._prepared(whole)
            with self._around():
                returned = self._embedded.loss(cached.leaves(), whole)
            of_loss.end_forward()
            value, share, counted = self._share(returned, whole, items, trial.counts)
            self._undoing.set_aside(value)
            value.backward()
        cached.take_gradients()
        for (start, stop), part in parts.items():
            mode = trial.compare(start, stop)
            with mode, self._outside.watch(self._undoing.known(part)):
                pairs = cached.embed_again(start, part)
                mode.end_forward()
                for output, _ in pairs:
                    self._undoing.set_aside(output)
                propagate(pairs)
        cached.restore_random_state()
        return share, counted

    def _part(self, trial: Trial, start: int, stop: int) -> Any:
        part = trial.entry.picked(trial.samples[start:stop], self._place)
        return tree_map_only(torch.Tensor, wide, part) if trial.is_wide else part

    def _around(self) -> contextlib.AbstractContextManager[None]:
        return within(self._precision, self._target)

    def _prepared(self, part: Any) -> Any:
        return self._target.prepare(part) if self._target.preparations else part

    def _share(
        self, returned: Any, part: Any, size: int, counts: dict[str, float] | None
    ) -> tuple[torch.Tensor, float, dict[str, float]]:
        """Return a micro-batch's share of the whole loss, as a tensor and as a number, and the count of each
        loss.
        """
        counted = self._count(part) if self._count is not None else float(size)
        loss, own = share_of(returned, counted, counts, sums=self.sums)
        return loss, float(loss.detach()), own

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield all tensors that are converted to float64."""
        for module in self._modules:
            yield from module.parameters()
            yield from module.buffers()
        yield from self._parameters.all

    def _name(self) -> str:
        if self.autocast:
            return self.autocast
        if self._precision.name == "bf16":
            return "bfloat16"
        if self._precision.name == "fp16":
            return "float16"
        kinds = {each.dtype for each in self._parameters.all if each.requires_grad}
        for kind in (torch.float16, torch.bfloat16, torch.float32):
            if kind in kinds:
                return str(kind).removeprefix("torch.")
        return "float64"
