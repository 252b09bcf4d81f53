"""A window: the batches of one optimizer step, run until their gradients are ready, however often that takes.

All that a window changes before the optimizer steps is kept at its begin, so that an attempt which fails leaves no trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import nn

from memfit import _core

from .batches import Batch
from .buffers import Buffers
from .device import Meter, local
from .exactness import Exactness
from .faults import Fault, StepDoesNotFit, StepInvalid, collect, forget
from .part import Runner
from .precision import Precision
from .randomness import Numbers
from .ranks import IDLE, Alone
from .stopping import smaller_batch, told
from .tally import Tally
from .updates import Updates

# Windows after which the model's parameters are listed again.
_AGAIN = 64
# Attempts at a window that end since other ranks failed.
_ATTEMPTS = 20


class Window:
    """The open window of a training, and what it was before it."""

    def __init__(
        self,
        model: nn.Module,
        controller: _core.Controller,
        ranks: Alone,
        runner: Runner,
        meter: Meter,
        updates: Updates,
        precision: Precision,
        exactness: Exactness,
        *,
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
        self._accumulate = accumulate
        self._clip = clip
        self._in_backward = in_backward
        # The levers that are in use.
        self._applied = applied
        self._device = meter.device
        self._batches: list[Batch] = []
        self._parameters: list[nn.Parameter] = []
        self._buffers = Buffers(model)
        self._numbers = Numbers(meter.device)
        self._last_size = 1
        # Samples of the last batch that came.
        self._items = 0
        self._why = ""
        # Whether a part was given up since another rank failed.
        self._given_up = False
        self._lost = ""
        # Gradients of batches that another process ran before this one took over in mid-window.
        self.inherited: dict[str, torch.Tensor] = {}
        # Buffers that were ever seen to change.
        self.stateful: set[str] = set()

    def begin(self) -> None:
        """Remember everything as it is."""
        if not self._parameters or self._controller.windows % _AGAIN == 0:
            # Walking a model takes longer than all else that is done here.
            self._parameters = list(self.model.parameters())
        self._drop_gradients()
        self._buffers.keep()
        self._numbers.keep()
        self._ranks.begin()
        self._meter.begin()
        if self._in_backward:
            self._updates.begin()

    def add(self, entry: Batch, expected: float) -> None:
        """A batch arrives, which is expected to count so much."""
        self._controller.arrive(entry.shape, entry.elements, entry.items, expected, entry.costs)
        self._batches.append(entry)
        self._items = entry.items

    def run(self, newest: bool, whole: bool) -> tuple[Tally, int, torch.Tensor | None, float]:
        """Run until all ranks' parts ran, and the gradients are ready to be stepped with where the window is whole: the
        newest batch's tally, how often it was tried again, the gradient's norm, and what all ranks counted."""
        tally = Tally(self._device)
        outcome, fault = "done", None
        retries = 0
        while True:
            self._given_up = False
            if newest or retries:
                outcome, tally, fault = self._run_batches(retries)
            if whole or self._ranks.inside or self._given_up or (fault is not None and self._ranks.meets):
                verdict, total = self._ranks.agree(self._controller, outcome, self.model)
            else:
                # Nothing is exchanged before the window is whole, so the other ranks need not know.
                verdict, total = ("step" if outcome == "done" else outcome), 0.0
            norm = None
            # A rank without a rest takes part in the end of an epoch, where no rank may have one.
            if verdict == "step" and whole and not (total == 0 and self._controller.empty):
                outcome, norm, fault = self._make_ready(total)
                verdict, told = self._settle(outcome)
                total = total if verdict == "step" else told
            if verdict == "step":
                return tally, retries, norm, total
            if verdict == "over":
                self.roll_back()
                raise self._explain(fault, total)
            retries += 1
            self.roll_back(keep=True)

    def _settle(self, outcome: str) -> tuple[str, float]:
        """What all ranks do whose gradients are ready, or are not: none steps before the others can."""
        if self._ranks.world == 1:
            return "step" if outcome == "done" else outcome, 0.0
        return self._ranks.agree(self._controller, outcome, self.model)

    def attempt(self, entry: Batch) -> None:
        """Run a batch, and let nothing come of it but what it needed."""
        self.begin()
        self.add(entry, float(entry.items))
        retries = 0
        try:
            while (ended := self._run_batches(retries))[0] != "done":
                if ended[0] == "over":
                    raise self._explain(ended[2], 0.0)
                retries += 1
                self.roll_back(keep=True)
        finally:
            if self._batches:
                self.roll_back()

    def settle(self) -> None:
        """The optimizer stepped."""
        self.stateful = self._buffers.settle()
        self._numbers.settle()
        self._batches.clear()
        self.inherited = {}
        self._drop_gradients()

    def roll_back(self, keep: bool = False) -> None:
        """Everything is as it was before the window; with `keep`, its batches are run again."""
        self._drop_gradients()
        self._buffers.restore()
        self._numbers.restore()
        self._ranks.roll_back()
        self._precision.forget(self._updates.optimizer)
        collect(self._device)
        if keep:
            self._controller.restart()
        else:
            self._batches.clear()
            self._controller.abandon()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Those of the batches so far, on the host."""
        return {
            name: local(parameter.grad.detach()).to("cpu", copy=True)
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    # ---------------------------------------------------------------------------------------- attempts

    def _run_batches(self, attempt: int) -> tuple[str, Tally, Fault | None]:
        """Run what is to be run: the newest batch, or after a failure the whole window again."""
        first = 0 if attempt else len(self._batches) - 1
        for index in range(first, len(self._batches)):
            # Of all batches that are run, the newest is the one that is told of.
            tally = Tally(self._device)
            fault, size = self._run_batch(index, tally)
            if fault is not None:
                return self._decide(index, size, fault), tally, fault
            if self._given_up:
                return self._outcome_of_others(attempt), tally, None
        return "done", tally, None

    def _run_batch(self, index: int, tally: Tally) -> tuple[Fault | None, int]:
        """Run a batch part by part; what went wrong, and how many samples the part had."""
        entry = self._batches[index]
        versions = entry.versions() if not self._runner.own else None
        # Samples of different sizes make parts that differ though they have equally many.
        shape = entry.shape if entry.costs is None else f"{entry.shape} {self._controller.windows} {index}"
        turns = self._ranks.parts(self._controller, index, self._meter.space, shape)
        while True:
            fault, turn = None, None
            try:
                turn = next(turns, None)
                if turn is not None:
                    with self._ranks.watching():
                        self._run_part(entry, index, turn, tally)
            except Exception as error:
                fault = self._understand(error)
            # The exception is gone here, and with it all that it held.
            if self._given_up:
                return None, 0
            if fault is not None:
                if self._in_backward:
                    self._undo_backward(fault)
                collect(self._device)
                size = turn[1] - turn[0] if turn is not None else 1
                self._ranks.failed(index, size)
                return fault, size
            if turn is None:
                break
        if versions is not None and entry.versions() != versions:
            self._runner.own = True
            tally.changed += self._exactness.edited()
        return None, 0

    def _run_part(self, entry: Batch, index: int, turn: tuple[int, int, bool, bool], tally: Tally) -> None:
        start, stop, empties, watched = turn
        idle = turn is IDLE
        opens = index == 0 and start == 0
        if empties:
            self._meter.empty(between=opens)
        tells = opens and not self.inherited and not self._ranks.inside
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

    def _understand(self, error: Exception) -> Fault | None:
        """What went wrong, if it is memory; nothing if another rank failed, which is noted."""
        if self._ranks.gave_up(error):
            self._lost = str(error)
            forget(error)
            self._given_up = True
            return None
        fault = self._read(error)
        if fault is None:
            raise error
        return fault

    def _outcome_of_others(self, attempt: int) -> str:
        """What follows for this rank where another one failed."""
        return "again" if self._ranks.can_retry and attempt < _ATTEMPTS else "lost"

    def _read(self, error: Exception) -> Fault | None:
        """What an error says, if it is memory. All others are the user's, and go on as they came: everything is as before."""
        fault = Fault.of(error, self._device)
        if fault.kind not in ("other", "sticky"):
            forget(error)
            return fault
        # The other ranks are not left waiting for this one.
        if self._ranks.world > 1 and (self._controller.whole or self._ranks.inside):
            with contextlib.suppress(RuntimeError):
                if fault.kind == "other":
                    self._ranks.failed(0, 0)
                    self._ranks.leave()
                self._ranks.agree(self._controller, "over", self.model)
        self.roll_back()
        return None

    def _decide(self, index: int, size: int, fault: Fault) -> str:
        """What follows from a failure: "again" or "over"."""
        if self._in_backward:
            self._why = "whole"
            return "over"
        decision = self._controller.failed(
            index, size, fault.types, fault.message, fault.free, fault.capacity
        )
        self._why = decision
        return "again" if decision == "again" and self._ranks.can_retry else "over"

    def _undo_backward(self, fault: Fault) -> None:
        """A backward that updates as it goes failed: it leaves the parameters as they were, or it is said."""
        try:
            self._updates.undo(fault)
        except StepInvalid:
            self.roll_back()
            raise

    # ---------------------------------------------------------------------------------------- gradients

    def _make_ready(self, total: float) -> tuple[str, torch.Tensor | None, Fault | None]:
        """Correct, exchange, unscale and clip the window's gradients: what became of that, their norm where they are
        clipped, and what went wrong."""
        fault = None
        try:
            with self._ranks.watching(inside=False):
                return "done", self._correct(total), None
        except Exception as error:
            if self._ranks.gave_up(error):
                self._lost = str(error)
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
            return self._outcome_of_others(self._controller.attempt), None, None
        return self._decide(max(len(self._batches) - 1, 0), self._last_size, fault), None, fault

    def _correct(self, total: float) -> torch.Tensor | None:
        correction = self._ranks.correction(self._controller, total)
        if self.inherited:
            self._inherit()
        if correction != 1.0:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            if gradients:
                # Those on different meshes do not go together, and what lies here does.
                torch._foreach_mul_([local(each) for each in gradients], correction)
        if self._ranks.world > 1:
            self._ranks.reduce(self.model.parameters(), self.model.buffers())
        if self._precision.scaler is not None:
            # Here, where all of it can be done again, and not within the optimizer's step.
            self._precision.scaler.unscale_(self._updates.optimizer)
        if self._clip is not None:
            norm = self._ranks.clip(self._parameters, self._clip)
            return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return None

    def _inherit(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name in self.inherited:
                inherited = self.inherited[name].to(parameter.device)
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).add_(inherited)

    def _explain(self, fault: Fault | None, rank: float) -> Exception:
        if fault is None and self._lost and rank == self._ranks.rank:
            return StepDoesNotFit(
                f"{self._lost}; parameters are as they were before the step\n"
                "hint: every rank has to come to the same collectives, as often as it runs the model"
            )
        if fault is None:
            return StepDoesNotFit(
                f"rank {int(rank)} cannot go on; this rank's parameters are as they were before the step\n"
                "hint: its own error says why"
            )
        why = {
            "one-sample": "a single sample does not fit into the device's memory",
            "whole": "the batch does not fit whole, and `optimizer-in-backward` cannot run it in parts",
            "too-often": "memory did not suffice, however small the parts were",
        }.get(self._why, "memory did not suffice")
        if not self._ranks.can_retry:
            why += ", and with this PyTorch, FSDP2 cannot go on after a failure (2.15 has `FSDPModule.reset_iter_state`)"
        found = told(self.model, self._updates.optimizer, self._meter, fault, self._applied)
        if self._why == "whole":
            found = "; ".join(filter(None, (found, smaller_batch(self._items))))
        return StepDoesNotFit(
            f"{why}; parameters, buffers and random numbers are as they were before the step\n"
            + (f"{found}\n" if found else "")
            + 'hint: `memfit.Step(..., levers={"checkpointing": "blocks"})` applies a lever to this model, and `memfit plan --gpu '
            f"NAME -- python train.py` looks for the fastest that fit\n{fault.message}"
        )
