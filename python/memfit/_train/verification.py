"""Measures on a few samples if a divided batch trains like the whole batch.

The samples run whole and divided, with the same random numbers for each of them, and everything that affects
later training is compared: gradients, losses, buffers, and other state that the forward pass writes to. If
all are equal within rounding, the batch may be divided; otherwise dividing it would change the training.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from memfit._levers import Target

from .batches import Batch
from .caching import Cached, Embedded, backward
from .comparing import Comparing, Draws, NotComparable, RanksMeet, wide, widened
from .differences import Outcome, Verification, judge, loss_differs
from .faults import collect, forget, is_memory
from .graph import Kink, kinks, node_number, tail
from .outside import Outside
from .parameters import Parameters
from .precision import Precision, within
from .surroundings import Changes
from .tally import read_losses, split_metrics
from .undoing import Undoing
from .variation import Constant
from .ways import divisions

# Maximum number of attempts when memory runs out: the second and the third use two samples.
_MAX_ATTEMPTS = 3


class _Trial(NamedTuple):
    """One run of some samples, whole or in micro-batches; `counts` are those of the whole run."""

    entry: Batch
    samples: Sequence[int]
    sizes: tuple[int, ...]
    draws: Draws
    counts: dict[str, float] | None
    is_wide: bool
    opposite: bool

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Return the start and end of each micro-batch."""
        return itertools.pairwise(itertools.accumulate(self.sizes, initial=0))

    def compare(self, start: int, stop: int, is_whole: bool = False) -> Comparing:
        """Return a mode that records the random numbers of the whole run, or replays them for a
        micro-batch.
        """
        own = None if is_whole else (start, stop, len(self.samples))
        return Comparing(self.draws, own, self.is_wide, self.opposite)


class Verifier:
    """Compares a training run's batches with their micro-batches."""

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
        embedded: Embedded | None = None,
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

    def changes(self) -> Changes:
        """Return the changes to the variables around the loss function."""
        return self._outside.changes()

    def verify(self, entry: Batch, size: int, samples: Sequence[int]) -> Verification:
        """Compare these samples of a batch with micro-batches of them. `size` is the micro-batch size of the
        training.
        """
        began = time.perf_counter()
        items = len(samples)
        ways = divisions(items, size, self._pairs)
        found: Verification | None = None
        self._goes_on = self._drew = False
        with self._undoing.undone():
            for _ in range(_MAX_ATTEMPTS):
                try:
                    found = self._measure(entry, samples[:items], ways)
                    break
                except Exception as error:
                    if not is_memory(error, self._device):
                        raise
                    forget(error)
                collect(self._device)
                items, ways = 2, ((1, 1),)
        if found is None:
            why = "two samples do not fit, so there is nothing to compare with"
            found = Verification(False, items, ways, self._name(), why=why, failed=True)
        if self._device.type == "cuda":
            # Memory used by the comparison must not count towards the step.
            collect(self._device)
        return replace(found, seconds=time.perf_counter() - began)

    def whole_loss_differs(self, entry: Batch, size: int) -> str:
        """Compare the loss of all samples with that of their micro-batches, without gradients; return how
        they differ, or "". Only so many samples show a loss that depends on how many there are. Where memory
        does not suffice for them, or the loss needs gradients, nothing is compared.
        """
        if self._embedded is not None:
            return ""
        items = entry.items
        ways = divisions(items, size, self._pairs)[:1]
        draws = Draws(items)
        self._goes_on = self._drew = False
        try:
            with self._undoing.undone(), torch.no_grad():
                whole = self._run(entry, range(items), (items,), draws, None, False)
                parts = self._run(entry, range(items), ways[0], draws, whole.counts, False)
        except RanksMeet:
            raise
        except Exception as error:
            forget(error)
            collect(self._device)
            return ""
        # Python's and NumPy's numbers cannot be given to the samples that they belong to.
        return "" if self._drew else loss_differs(whole, parts, self._name(), draws.coarse)

    # ----------------------------------------------------------------------------------------- measuring

    def _measure(
        self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...]
    ) -> Verification:
        """Compare in the training's precision, and in float64 if possible; the latter decides."""
        if not self._widens or self._name() == "float64":
            return self._compare_with_numbers(entry, samples, ways, False)
        # One way of dividing shows if the training's own kernels behave like those of float64.
        own = self._compare_with_numbers(entry, samples, ways[:1], False)
        if own.difference is None:
            return own
        try:
            wide = self._compare_with_numbers(entry, samples, ways, True)
        except Exception as error:
            # A kernel has no float64 variant, or there is no memory for it.
            forget(error)
            collect(self._device)
            return self._compare_with_numbers(entry, samples, ways, False)
        finally:
            self._outside.prune()
        return wide if wide.difference is not None else own

    def _compare_with_numbers(
        self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...], is_wide: bool
    ) -> Verification:
        """Compare with Python's and NumPy's random state restored for each micro-batch; if that is not equal,
        with state that continues from micro-batch to micro-batch. Which of the two gives a sample its own
        numbers depends on the code that draws them.
        """
        self._goes_on = False
        anew = self._compare(entry, samples, ways, is_wide)
        if anew.equal and self._drew:
            # Each micro-batch drew the numbers of the whole batch.
            return replace(anew, shared=(*anew.shared, "numbers of Python's or NumPy's generator"))
        if anew.equal or not self._drew:
            return anew
        self._goes_on = True
        going_on = self._compare(entry, samples, ways, is_wide)
        return going_on if going_on.equal else anew

    def _compare(
        self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...], is_wide: bool
    ) -> Verification:
        items = len(samples)
        draws = Draws(items)
        name = "float64" if is_wide else self._name()
        with widened(self._tensors()) if is_wide else contextlib.nullcontext():
            try:
                whole = self._run(entry, samples, (items,), draws, None, is_wide)
            except Exception as error:
                if is_memory(error, self._device) or is_wide or isinstance(error, RanksMeet):
                    raise
                why = f"the loss function fails on {items} samples: {_describe_error(error)}"
                return Verification(False, items, ways, name, why=why, failed=True)
            worst: Verification | None = None
            for sizes in ways:
                try:
                    parts = self._run(entry, samples, sizes, draws, whole.counts, is_wide)
                    found = judge(items, ways, name, whole, parts, draws.coarse and not is_wide)
                except NotComparable as error:
                    found = Verification(False, items, ways, name, why=str(error))
                except Exception as error:
                    if is_memory(error, self._device) or isinstance(error, RanksMeet):
                        raise
                    way = " + ".join(map(str, sizes))
                    why = (
                        f"the loss function fails on micro-batches of {way} samples: {_describe_error(error)}"
                    )
                    found = Verification(False, items, ways, name, why=why, failed=True)
                if worst is None or _rank(found) > _rank(worst):
                    worst = found
                if not found.equal:
                    break
            assert worst is not None
            if worst.equal and draws.turns:
                worst = self._turned(entry, samples, ways, name, draws, is_wide) or worst
        self.constants |= draws.constants
        return _with_random(worst, draws)

    def _turned(
        self,
        entry: Batch,
        samples: Sequence[int],
        ways: tuple[tuple[int, ...], ...],
        name: str,
        draws: Draws,
        is_wide: bool,
    ) -> Verification | None:
        """Compare again with comparisons of the model's numbers inverted for one sample: they may decide how
        much it counts, and may have had the same result in all of these few samples. Return `None` if that
        makes no difference.
        """
        try:
            whole = self._run(entry, samples, (len(samples),), draws, None, is_wide, opposite=True)
            parts = self._run(entry, samples, ways[0], draws, whole.counts, is_wide, opposite=True)
        except Exception as error:
            if is_memory(error, self._device):
                raise
            # An impossible result makes the loss function raise, or gives another shape.
            forget(error)
            return None
        found = judge(len(samples), ways, name, whole, parts, draws.coarse and not is_wide)
        finite = found.difference is not None and found.difference == found.difference
        if found.equal or not finite or whole.loss != whole.loss:
            return None
        why = (
            "how much a sample counts depends on a comparison of values that the model computed; with "
            "another result, "
        )
        return replace(found, why=why + found.why)

    # ----------------------------------------------------------------------------------------- running

    def _run(
        self,
        entry: Batch,
        samples: Sequence[int],
        sizes: tuple[int, ...],
        draws: Draws,
        counts: dict[str, float] | None,
        is_wide: bool,
        opposite: bool = False,
    ) -> Outcome:
        """Run the samples forward and backward in micro-batches of these sizes; `counts` are those of the
        whole run.
        """
        self._undoing.begin()
        self._kinks: list[Kink] = []
        trial = _Trial(entry, samples, sizes, draws, counts, is_wide, opposite)
        run = self._run_parts if self._embedded is None or len(sizes) == 1 else self._run_embedded
        try:
            total, counted = run(trial)
            return Outcome(
                self._undoing.gradients(),
                total,
                counted,
                self._undoing.state(),
                self._outside.numbers(),
                self._outside.unmoved(),
                self._kinks,
            )
        finally:
            # Also after an error, or the next run would begin with what this one wrote.
            self._undoing.end()

    def _run_parts(self, trial: _Trial) -> tuple[float, dict[str, float]]:
        total = 0.0
        counted: dict[str, float] = {}
        for start, stop in trial.bounds():
            part = self._part(trial, start, stop)
            mode = trial.compare(start, stop, is_whole=len(trial.sizes) == 1)
            with mode, self._outside.watch(self._undoing.known(part)):
                part = self._prepared(part)
                before = node_number()
                with self._around():
                    returned = self._loss(self._model, part)
                if not trial.is_wide and not trial.opposite and before is not None:
                    self.paths.add(((node_number() or 0) - before, tail(returned)))
                self._kinks += kinks(returned)
                value, share, own_counts = self._share(returned, part, stop - start, trial.counts)
                if trial.is_wide and value.dtype != torch.float64:
                    # The loss function rounds in between, by more than a comparison in float64 allows.
                    raise TypeError(f"the loss is {value.dtype}")
                mode.forward = False
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
        return total, counted

    def _run_embedded(self, trial: _Trial) -> tuple[float, dict[str, float]]:
        """Run a loss that compares samples: embed each micro-batch, and again for its backward pass."""
        assert self._embedded is not None
        items = len(trial.samples)
        cached = Cached(self._embedded.embed, self._model, self._device, self._around)
        parts: dict[tuple[int, int], Any] = {}
        for start, stop in trial.bounds():
            part = self._part(trial, start, stop)
            mode = trial.compare(start, stop)
            with mode, self._outside.watch(self._undoing.known(part)):
                part = self._prepared(part)
                cached.look(part, start, stop)
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
                returned = self._embedded.loss(cached.embeddings(), whole)
            value, share, counted = self._share(returned, whole, items, trial.counts)
            of_loss.forward = False
            self._undoing.set_aside(value)
            value.backward()
        cached.differentiated()
        for (start, stop), part in parts.items():
            mode = trial.compare(start, stop)
            with mode, self._outside.watch(self._undoing.known(part)):
                pairs = cached.again(start, part)
                mode.forward = False
                for output, _ in pairs:
                    self._undoing.set_aside(output)
                backward(pairs)
        cached.end()
        return share, counted

    def _part(self, trial: _Trial, start: int, stop: int) -> Any:
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
        losses, own = read_losses(split_metrics(returned)[0], counted)
        loss: torch.Tensor | None = None
        for name, (value, weight) in losses.items():
            total = own[name] if counts is None else counts.get(name, 0.0)
            factor = 1.0 if self.sums else weight / total if total and own[name] else 0.0
            share = value * factor
            loss = share if loss is None else loss + share
        assert loss is not None
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


def _rank(found: Verification) -> tuple[bool, float]:
    difference = found.difference
    return (not found.equal, float("inf") if difference is None or difference != difference else difference)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _with_random(found: Verification, draws: Draws) -> Verification:
    notes = []
    if draws.any:
        notes.append("each sample had the same random numbers; in training every micro-batch draws its own")
    if draws.fused_dropout:
        notes.append("dropout inside fused kernels was turned off")
    return replace(found, random="; ".join(notes), shared=tuple(draws.shared))
