"""An accumulation window: the batches of one optimizer step, run until their gradients are complete.

All state that a window changes before the optimizer steps is saved at its start, so a failed attempt has no
effect.
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
from .completing import Completion
from .device import Meter, local
from .division import Division, Undividable
from .does_not_fit import ASKED, PIPED, division_error
from .exactness import Exactness
from .failures import Failures
from .faults import Fault, collect, forget
from .given import Given
from .parameters import Parameters
from .part import Runner
from .precision import Precision
from .ranks import IDLE, SingleRank, Turn
from .snapshot import Snapshot
from .tally import Tally
from .updates import Updates


class Window:
    """The open accumulation window of a training run, and the state before it."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        controller: _core.Controller,
        ranks: SingleRank,
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
        # A single process, whose code waits for no other.
        self._is_alone = ranks.world == 1
        self._runner = runner
        self._meter = meter
        self._updates = updates
        self._precision = precision
        self._exactness = exactness
        self._division = division
        # Batches are divided because the user asks for it, and not only if they do not fit.
        self._divides = divides
        # Batches of the window that may not be divided, and why.
        self._whole: dict[int, Undividable] = {}
        # Set if the window starts again because one of its batches turned out not to be divisible.
        self._begins_anew = False
        self._snapshot = snapshot
        self._accumulate = accumulate
        self._in_backward = in_backward
        self._device = meter.device
        self._batches: list[Batch] = []
        self._expected: list[float] = []  # The expected count of each batch.
        self._parameters = parameters
        self._given = Given()
        # The gradient's correction factor for several losses.
        self._factor: float | None = None
        self._last_size = 1
        # The tally of a window that ends without a new batch.
        self._no_tally = Tally(self._device)
        # Number of samples in the last batch.
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
        # Gradients of batches that another process ran before this one resumed in the middle of the window.
        self.inherited: dict[str, torch.Tensor] = {}
        # The divisor and the count of these gradients.
        self._before = (1.0, 0.0)
        self.completion = Completion(
            model, parameters, controller, ranks, precision, updates, self._given, clip
        )

    def begin(self) -> None:
        """Save all state."""
        self._failures.begin()
        before = self._parameters.look()
        if self._ranks.world > 1:
            # Now, while there is memory for it.
            self._parameters.checksum()
        self._given.take(self._parameters.all, before)
        self._measure_noise()
        self._snapshot.keep()
        self._ranks.begin()
        self._meter.begin()
        if self._in_backward:
            self._given.refuse()
            self._updates.begin()

    def _measure_noise(self) -> None:
        if self.completion.noise is not None:
            self.completion.noise.begin(self._parameters.all)

    def add(self, entry: Batch, expected: float) -> None:
        """Add a batch with its expected count."""
        self._controller.arrive(entry.shape, entry.elements, entry.items, expected, entry.costs)
        self._batches.append(entry)
        self._expected.append(expected)
        self._items = entry.items

    def run(self, newest: bool, whole: bool) -> tuple[Tally, int, torch.Tensor | None, float]:
        """Run until the micro-batches of all ranks ran, and, if the window is `whole`, until the gradients
        are ready. Return the newest batch's tally, its retries, the gradient's norm, and all ranks' count.
        """
        tally, outcome, fault = self._no_tally, "done", None
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
                # Nothing is exchanged before the window is complete, so the other ranks need not know.
                verdict, total = ("step" if outcome == "done" else outcome), 0.0
            norm = None
            if verdict == "step" and whole and not self._weigh(tally):
                continue
            # A rank without remaining batches takes part in the end of an epoch, where all ranks may be
            # without.
            if verdict == "step" and whole and not (total == 0 and self._controller.empty):
                outcome, norm, fault = self._make_ready(total)
                verdict, rank = self._settle(outcome)
                total = total if verdict == "step" else rank
            if verdict == "step":
                return tally, retries, norm, total
            if verdict == "over":
                self.roll_back()
                raise self._failures.explain(fault, total, self._items)
            # Starting again to run a batch undivided is not a failure.
            retries += not self._begins_anew
            self.roll_back(keep=True)

    def _weigh(self, tally: Tally) -> bool:
        """Return `True` if a single factor corrects all losses; else prepare to run the window again with the
        counts of this run.
        """
        losses = self._runner.losses
        books = self._ranks.books(losses)
        self._factor = None
        if not books:
            return True
        self._factor, total, fits = losses.weigh(books, self._ranks.inside)
        if not any(total.values()):
            # Raises an error with a hint.
            self._controller.correction(0.0)
        if fits:
            return True
        if losses.weighed_again or self.inherited:
            # The loss has other counts in each run, or another process ran batches of this window.
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
        """Agree with all ranks on the outcome: none steps unless all can."""
        if self._ranks.world == 1:
            return "step" if outcome == "done" else outcome, 0.0
        return self._ranks.agree(self._controller, outcome, self._parameters)

    def attempt(self, entry: Batch) -> None:
        """Run a batch without keeping its results, only to measure its memory."""
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

    def settle(self, keeps: bool = False) -> None:
        """End the window after the optimizer's step; with `keeps`, the gradients stay for it."""
        self._snapshot.settle()
        self._forget()
        if not keeps:
            self._drop_gradients()

    def roll_back(self, keep: bool = False) -> None:
        """Restore all state from before the window; with `keep`, its batches are run again."""
        self._put_back()
        collect(self._device)
        if keep:
            self._controller.restart()
            self._runner.losses.rewind()
            if self.inherited:
                # Gradients from another process still count, with the divisor they were computed with.
                divisor, counted = self._before
                self._controller.divide_by(divisor)
                self._controller.count(counted)
        else:
            if len(self._batches) > 1 or self.inherited:
                warn("the open accumulation window is dropped, with the gradients of its earlier batches")
            self._given.put_back()
            self._forget()
            self._controller.abandon()

    def _put_back(self) -> None:
        self._drop_gradients()
        self._snapshot.restore()
        self._ranks.roll_back()
        # Modules that were interrupted get their own parameters back only now.
        self._parameters.look()
        self._drop_gradients()
        self._measure_noise()
        self._precision.forget(self._updates.optimizer)

    def _forget(self) -> None:
        """Clear the window after it ended or was dropped."""
        self._batches.clear()
        self._expected.clear()
        if self._whole:
            self._whole.clear()
        if self.inherited:
            self.inherited = {}
        self._given.forget()
        self._runner.losses.settle()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of the batches so far, on the host."""
        found = {
            name: local(parameter.grad.detach()).to("cpu", copy=True)
            for name, parameter in self._parameters.named()
            if parameter.grad is not None
        }
        for name, inherited in self.inherited.items():
            found[name] = found[name] + inherited.to("cpu") if name in found else inherited
        return found

    def take_over(self, gradients: Mapping[str, torch.Tensor], losses: Mapping[str, Any] | None) -> None:
        """Continue a window that another process began, if there is one."""
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

    def _run_batches(self, attempt: int) -> tuple[str, Tally, Fault | None]:
        """Run the newest batch, or all batches of the window after a failure."""
        again = attempt or self._runner.losses.weighed_again or self._begins_anew
        self._begins_anew = False
        first = 0 if again else len(self._batches) - 1
        for index in range(first, len(self._batches)):
            # Only the newest batch's tally is returned.
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
        """Run a batch in micro-batches; return the fault and the size of the micro-batch that failed."""
        entry = self._batches[index]
        versions = entry.versions() if not self._runner.own else None
        # If samples differ in size, micro-batches with equally many samples differ as well.
        shape = entry.shape if entry.costs is None else f"{entry.shape} {self._controller.windows} {index}"
        turns = self._ranks.parts(self._controller, index, self._meter.space, shape)
        if index in self._whole:
            turns = iter([(0, entry.items, False, False)])
        elif self._runner.caches:
            turns = self._embedded(entry, index, turns, tally)
        while True:
            fault, turn = None, None
            try:
                turn = next(turns, None)
                if turn is None:
                    break
                if self._is_alone:
                    self._run_part(entry, index, turn, tally)
                    if turn[1] == entry.items:
                        break
                    continue
                with self._ranks.watching():
                    self._run_part(entry, index, turn, tally)
            except Undividable as error:
                self._may_run_whole(index, error)
                if not error.ran and tally.parts == 0:
                    turns = iter([(0, entry.items, False, False)])
                    continue
                self._begins_anew = True
                return None, 0
            except Exception as error:
                if turn is not None:
                    self._division.advise(error, entry, turn[0], turn[1])
                fault = self._failures.understand(error)
            except BaseException as error:
                self._failures.interrupted(error)
                raise
            # The exception is cleared by now, and with it everything that it held.
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
        if versions is not None and entry.versions() != versions:
            self._runner.own = True
            tally.changed += self._exactness.edited()
        return None, 0

    def _embedded(self, entry: Batch, index: int, turns: Iterator[Turn], tally: Tally) -> Iterator[Turn]:
        """Embed all micro-batches of a batch whose loss compares samples, if there are several, then yield
        them.
        """
        self._runner.drop()
        parts = list(turns)
        self._last_size = parts[0][1] - parts[0][0]
        if len(parts) > 1:
            tally.changed += self._division.require(entry, self._last_size)
            opens = self._accumulate if index == 0 and not self.inherited else 0.0
            self._runner.embed_all(entry, [part[:2] for part in parts], tally, opens, self._device)
        yield from parts

    def _may_run_whole(self, index: int, error: Undividable) -> None:
        """Run a batch undivided if it may not be divided. Raise if the user asked for micro-batches, or if
        ranks run collectives inside a micro-batch, since the others would not follow.
        """
        if not self._divides and not self._ranks.inside:
            self._whole[index] = error
            return
        self._failures.end_for_others(fails=True)
        self.roll_back()
        raise division_error(str(error), PIPED if self._ranks.pipes else ASKED) from None

    def _run_part(self, entry: Batch, index: int, turn: tuple[int, int, bool, bool], tally: Tally) -> None:
        start, stop, empties, watched = turn
        idle = turn is IDLE
        if stop - start < entry.items and not idle:
            tally.changed += self._division.require(entry, stop - start)
        opens = index == 0 and start == 0
        if empties:
            self._meter.empty()
        compared = self._division.comparisons
        count = 0.0 if not opens or self.inherited or self._ranks.inside else self._accumulate
        if self._snapshot.watches and not self._ranks.pipes:
            with self._snapshot.watching(entry, self._parameters):
                self._runner.run(entry, start, stop, tally, opens=count, idle=idle)
        else:
            self._runner.run(entry, start, stop, tally, opens=count, idle=idle)
        if idle:
            return
        self._last_size = stop - start
        # The memory of a comparison is not the micro-batch's own.
        measures = watched and self._division.comparisons == compared
        need, stays = self._meter.need() if measures else (None, 0)
        if opens and need is not None:
            # After a window's first micro-batch, only its gradients stay in memory.
            self._controller.gradients_take(stays)
        self._controller.passed(index, stop - start, need)

    # ---------------------------------------------------------------------------------------- gradients

    def _make_ready(self, total: float) -> tuple[str, torch.Tensor | None, Fault | None]:
        """Correct, exchange, unscale and clip the window's gradients. Return the outcome, their norm if they
        are clipped, and the fault.
        """
        fault = None
        try:
            if self._is_alone:
                return "done", self.completion.run(total, self._factor, self.inherited), None
            with self._ranks.watching(inside=False):
                return "done", self.completion.run(total, self._factor, self.inherited), None
        except Exception as error:
            if self._ranks.gave_up(error):
                self._failures.lost = str(error)
            else:
                fault = Fault.from_error(error, self._device)
                if total:
                    # The other ranks are in the exchange, or about to enter it.
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
