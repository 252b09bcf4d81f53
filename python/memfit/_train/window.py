"""A window: the batches of one optimizer step, run until their gradients are ready, however often that takes.

All that a window changes before the optimizer steps is kept at its begin, so that an attempt which fails
leaves no trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from memfit import _core
from memfit._levers.saying import warn

from .batches import Batch
from .device import Meter, local
from .division import Division, Undividable
from .does_not_fit import of_division
from .exactness import Exactness
from .failures import Failures
from .faults import Fault, collect, forget
from .given import Given
from .parameters import Parameters
from .part import Runner
from .precision import Precision
from .ranks import IDLE, Alone, Turn
from .snapshot import Snapshot
from .tally import Tally
from .updates import Updates


class Window:
    """The open window of a training, and what it was before it."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        controller: _core.Controller,
        ranks: Alone,
        runner: Runner,
        meter: Meter,
        updates: Updates,
        precision: Precision,
        exactness: Exactness,
        division: Division,
        snapshot: Snapshot,
        *,
        divides: bool,
        accumulate: int,
        clip: float | None,
        in_backward: bool,
        applied: Sequence[str],
    ) -> None:
        self.model = model
        self._controller = controller
        self._ranks = ranks
        self._runner = runner
        self._meter = meter
        self._updates = updates
        self._precision = precision
        self._exactness = exactness
        self._division = division
        # Whether batches are divided because their owner says so, and not only where they do not fit.
        self._divides = divides
        # Batches of the window that may not be divided, and why.
        self._whole: dict[int, Undividable] = {}
        # Whether the window begins anew, since one of its batches turned out to be such.
        self._begins_anew = False
        self._snapshot = snapshot
        self._accumulate = accumulate
        self._clip = clip
        self._in_backward = in_backward
        self._device = meter.device
        self._batches: list[Batch] = []
        self._expected: list[float] = []  # What each of these counts.
        self._parameters = parameters
        self._given = Given()
        # What the gradient is multiplied by where there are several losses.
        self._factor: float | None = None
        self._last_size = 1
        # Samples of the last batch that came.
        self._items = 0
        self._failures = Failures(
            model,
            controller,
            ranks,
            updates,
            meter,
            parameters,
            in_backward=in_backward,
            applied=applied,
            roll_back=self.roll_back,
        )
        # Gradients of batches that another process ran before this one took over in mid-window.
        self.inherited: dict[str, torch.Tensor] = {}
        # What these were divided by, and what they counted.
        self._before = (1.0, 0.0)

    def begin(self) -> None:
        """Remember everything as it is."""
        self._failures.begin()
        before = self._parameters.look()
        if self._ranks.world > 1:
            # Now, while there is room to look at them.
            self._parameters.mark()
        self._given.take(self._parameters.all, before)
        self._snapshot.keep()
        self._ranks.begin()
        self._meter.begin()
        if self._in_backward:
            self._given.refuse()
            self._updates.begin()

    def add(self, entry: Batch, expected: float) -> None:
        """A batch arrives, which is expected to count so much."""
        self._controller.arrive(entry.shape, entry.elements, entry.items, expected, entry.costs)
        self._batches.append(entry)
        self._expected.append(expected)
        self._items = entry.items

    def run(self, newest: bool, whole: bool) -> tuple[Tally, int, torch.Tensor | None, float]:
        """Run until all ranks' parts ran, and the gradients are ready to be stepped with where the window is
        whole: the newest batch's tally, how often it was tried again, the gradient's norm, and what all ranks
        counted.
        """
        tally = Tally(self._device)
        outcome, fault = "done", None
        retries = 0
        losses = self._runner.losses
        while True:
            self._failures.given_up = False
            if newest or retries or losses.weighed_again or self._begins_anew:
                outcome, tally, fault = self._run_batches(retries)
            if (
                whole
                or self._ranks.inside
                or self._failures.given_up
                or (fault is not None and self._ranks.meets)
            ):
                verdict, total = self._ranks.agree(
                    self._controller, outcome, self._parameters, bool(losses.counts)
                )
            else:
                # Nothing is exchanged before the window is whole, so the other ranks need not know.
                verdict, total = ("step" if outcome == "done" else outcome), 0.0
            norm = None
            if verdict == "step" and whole and not self._weigh(tally):
                continue
            # A rank without a rest takes part in the end of an epoch, where no rank may have one.
            if verdict == "step" and whole and not (total == 0 and self._controller.empty):
                outcome, norm, fault = self._make_ready(total)
                verdict, told = self._settle(outcome)
                total = total if verdict == "step" else told
            if verdict == "step":
                return tally, retries, norm, total
            if verdict == "over":
                self.roll_back()
                raise self._failures.explain(fault, total, self._items)
            # One that begins anew to run a batch whole did not fail.
            retries += not self._begins_anew
            self.roll_back(keep=True)

    def _weigh(self, tally: Tally) -> bool:
        """Whether one factor puts all losses right; else the window is to be run again, for what it was seen
        to count.
        """
        losses = self._runner.losses
        books = self._ranks.books(losses)
        self._factor = None
        if not books:
            return True
        self._factor, total, fits = losses.weigh(books, self._ranks.inside)
        if not any(total.values()):
            # Says so, and what to do.
            self._controller.correction(0.0)
        if fits:
            return True
        if losses.weighed_again or self.inherited:
            # The loss counts something else each time, or another process ran batches of this window.
            tally.changed += self._exactness.ratios()
            return True
        self._exactness.weighed_again()
        self._put_back()
        self._controller.abandon()
        for entry, expected in zip(self._batches, self._expected, strict=True):
            self._controller.arrive(entry.shape, entry.elements, entry.items, expected, entry.costs)
        losses.run_again(total)
        return False

    def _settle(self, outcome: str) -> tuple[str, float]:
        """What all ranks do whose gradients are ready, or are not: none steps before the others can."""
        if self._ranks.world == 1:
            return "step" if outcome == "done" else outcome, 0.0
        return self._ranks.agree(self._controller, outcome, self._parameters)

    def attempt(self, entry: Batch) -> None:
        """Run a batch, and let nothing come of it but what it needed."""
        self.begin()
        self.add(entry, float(entry.items))
        retries = 0
        try:
            while (ended := self._run_batches(retries))[0] != "done":
                if ended[0] == "over":
                    raise self._failures.explain(ended[2], 0.0, self._items)
                retries += 1
                self.roll_back(keep=True)
        finally:
            if self._batches:
                self.roll_back()

    def settle(self) -> None:
        """The optimizer stepped."""
        self._snapshot.settle()
        self._forget()
        self._drop_gradients()

    def roll_back(self, keep: bool = False) -> None:
        """Everything is as it was before the window; with `keep`, its batches are run again."""
        self._put_back()
        collect(self._device)
        if keep:
            self._controller.restart()
            self._runner.losses.rewind()
            if self.inherited:
                # Those that another process ran are counted still, and were divided by what it divided by.
                divisor, counted = self._before
                self._controller.divide_by(divisor)
                self._controller.count(counted)
        else:
            if len(self._batches) > 1 or self.inherited:
                warn("the open window is dropped, with what its earlier batches had added to the gradient")
            self._given.put_back()
            self._forget()
            self._controller.abandon()

    def _put_back(self) -> None:
        self._drop_gradients()
        self._snapshot.restore()
        self._ranks.roll_back()
        # Modules that were left in their middle have their own parameters back only now.
        self._parameters.look()
        self._drop_gradients()
        self._precision.forget(self._updates.optimizer)

    def _forget(self) -> None:
        """The window is over, or was dropped."""
        self._batches.clear()
        self._whole.clear()
        self._expected.clear()
        self.inherited = {}
        self._given.forget()
        self._runner.losses.settle()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Those of the batches so far, on the host."""
        found = {
            name: local(parameter.grad.detach()).to("cpu", copy=True)
            for name, parameter in self._parameters.named()
            if parameter.grad is not None
        }
        for name, inherited in self.inherited.items():
            found[name] = found[name] + inherited.to("cpu") if name in found else inherited
        return found

    def take_over(self, gradients: Mapping[str, torch.Tensor], losses: Mapping[str, Any] | None) -> None:
        """Go on with a window that another process began, if it did."""
        self._forget()
        self._drop_gradients()
        self.inherited = dict(gradients)
        self._before = self._controller.divisor, self._controller.counted
        if losses is not None:
            self._runner.losses.take_over(losses)
        if not self._controller.empty:
            self.begin()

    def _drop_gradients(self) -> None:
        for parameter in self._parameters.all:
            parameter.grad = None

    # ---------------------------------------------------------------------------------------- attempts

    def _run_batches(self, attempt: int) -> tuple[str, Tally, Fault | None]:
        """Run what is to be run: the newest batch, or after a failure the whole window again."""
        again = attempt or self._runner.losses.weighed_again or self._begins_anew
        self._begins_anew = False
        first = 0 if again else len(self._batches) - 1
        for index in range(first, len(self._batches)):
            # Of all batches that are run, the newest is the one that is told of.
            tally = Tally(self._device)
            fault, size = self._run_batch(index, tally)
            if fault is not None:
                return self._failures.decide(index, size, fault, self._whole.get(index)), tally, fault
            if self._begins_anew:
                return "again", tally, None
            if self._failures.given_up:
                return self._failures.outcome_of_others(attempt), tally, None
        return "done", tally, None

    def _run_batch(self, index: int, tally: Tally) -> tuple[Fault | None, int]:
        """Run a batch part by part; what went wrong, and how many samples the part had."""
        entry = self._batches[index]
        versions = entry.versions() if not self._runner.own else None
        # Samples of different sizes make parts that differ though they have equally many.
        shape = entry.shape if entry.costs is None else f"{entry.shape} {self._controller.windows} {index}"
        whole = iter([(0, entry.items, False, False)])
        turns = self._ranks.parts(self._controller, index, self._meter.space, shape)
        if index in self._whole:
            turns = whole
        elif self._runner.caches:
            turns = self._embedded(entry, index, turns, tally)
        while True:
            fault, turn = None, None
            try:
                turn = next(turns, None)
                if turn is not None:
                    with self._ranks.watching():
                        self._run_part(entry, index, turn, tally)
            except Undividable as error:
                self._may_run_whole(index, error)
                if not error.ran and tally.parts == 0:
                    turns = whole
                    continue
                self._begins_anew = True
                return None, 0
            except Exception as error:
                fault = self._failures.understand(error)
            except BaseException as error:
                self._failures.interrupted(error)
                raise
            # The exception is gone here, and with it all that it held.
            if self._failures.given_up:
                return None, 0
            if fault is not None:
                if self._in_backward:
                    self._failures.undo_backward(fault)
                collect(self._device)
                between = self._last_size if self._runner.caches else 1
                size = turn[1] - turn[0] if turn is not None else between
                self._ranks.failed(index, size)
                return fault, size
            if turn is None:
                break
        if versions is not None and entry.versions() != versions:
            self._runner.own = True
            tally.changed += self._exactness.edited()
        return None, 0

    def _embedded(self, entry: Batch, index: int, turns: Iterator[Turn], tally: Tally) -> Iterator[Turn]:
        """The parts of a batch whose loss compares its samples: where there are several, all are embedded
        first.
        """
        self._runner.drop()
        parts = list(turns)
        self._last_size = parts[0][1] - parts[0][0]
        if len(parts) > 1:
            tally.changed += self._division.require(entry, self._last_size)
            opens = self._accumulate if index == 0 and not self.inherited else 0.0
            self._runner.look(entry, [part[:2] for part in parts], tally, opens, self._device)
        yield from parts

    def _may_run_whole(self, index: int, error: Undividable) -> None:
        """A batch may not be divided: it is run whole, unless its owner wants it divided, or ranks that meet
        inside a part would not all do so.
        """
        if not self._divides and not self._ranks.inside:
            self._whole[index] = error
            return
        self._failures.end_for_others(fails=True)
        self.roll_back()
        raise of_division(str(error), asked=True) from None

    def _run_part(self, entry: Batch, index: int, turn: tuple[int, int, bool, bool], tally: Tally) -> None:
        start, stop, empties, watched = turn
        idle = turn is IDLE
        if stop - start < entry.items and not idle:
            tally.changed += self._division.require(entry, stop - start)
        opens = index == 0 and start == 0
        if empties:
            self._meter.empty(between=opens)
        tells = opens and not self.inherited and not self._ranks.inside
        with self._snapshot.watching(entry, self._parameters):
            self._runner.run(entry, start, stop, tally, opens=self._accumulate if tells else 0.0, idle=idle)
        if idle:
            return
        self._last_size = stop - start
        need = None
        if watched:
            need, stays = self._meter.need()
            if opens and need is not None:
                # What stays after a window's first part are its gradients.
                self._controller.gradients_take(stays)
        self._controller.passed(index, stop - start, need)

    # ---------------------------------------------------------------------------------------- gradients

    def _make_ready(self, total: float) -> tuple[str, torch.Tensor | None, Fault | None]:
        """Correct, exchange, unscale and clip the window's gradients: what became of that, their norm where
        they are clipped, and what went wrong.
        """
        fault = None
        try:
            with self._ranks.watching(inside=False):
                return "done", self._correct(total), None
        except Exception as error:
            if self._ranks.gave_up(error):
                self._failures.lost = str(error)
            else:
                fault = Fault.of(error, self._device)
                if total:
                    # The other ranks are in the exchange, or on their way.
                    self._ranks.leave()
                if fault.kind in ("other", "sticky"):
                    if total:
                        with contextlib.suppress(RuntimeError):
                            self._settle("over")
                    self.roll_back()
                    raise
            forget(error)
        if fault is None:
            return self._failures.outcome_of_others(self._controller.attempt), None, None
        return self._failures.decide(max(len(self._batches) - 1, 0), self._last_size, fault), None, fault

    def _correct(self, total: float) -> torch.Tensor | None:
        if self._controller.held > 1:
            # The user may have added some between two batches.
            self._parameters.look()
        mean = self._controller.correction(total) if self._factor is None else self._factor
        correction = self._ranks.correction(mean)
        if self.inherited:
            self._parameters.add_gradients(self.inherited)
        if correction != 1.0:
            gradients = [parameter.grad for parameter in self._parameters.all if parameter.grad is not None]
            if gradients:
                # Those on different meshes do not go together, and what lies here does.
                torch._foreach_mul_([local(each) for each in gradients], correction)
        if self._ranks.world > 1:
            self._ranks.reduce(self._parameters.all, self.model.buffers())
        if self._precision.scaler is not None:
            # Here, where all of it can be done again, and not within the optimizer's step.
            self._precision.scaler.unscale_(self._updates.optimizer)
        self._given.add()
        if self._clip is not None:
            norm = self._ranks.clip(self._parameters.all, self._clip)
            return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return None
