"""One training step that equals the whole batch's, and that memory cannot stop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn

from memfit import _core
from memfit._levers.saying import warn

from .batches import Batch
from .device import Fragmentation, budget, device_of, live, local, peak
from .exactness import Exactness, ignored_labels
from .faults import Fault, StepDoesNotFit, StepInvalid, collect, forget
from .plans import Planned, target_of
from .precision import Precision
from .probing import Probe, probed
from .ranks import ranks_of
from .sharded import PeerFailed
from .tally import Tally, is_mean, read_losses
from .transaction import Buffers, RandomState
from .updates import Updates
from .watching import Watch

# Windows after which the model's parameters are listed again.
_AGAIN = 64

Loss = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Result:
    """What a call of `memfit.Step` did."""

    loss: torch.Tensor
    """The batch's loss, as a mean; on the device, so that reading it is what waits."""
    micro_batches: int
    """In how many parts the batch was run."""
    retries: int
    """How many attempts failed for want of memory."""
    changed: tuple[str, ...]
    """What was not computed as the whole batch would; empty where nothing differs but rounding."""
    stepped: bool
    """Whether this batch completed a window, and the optimizer stepped."""
    skipped: bool = False
    """Whether the scaler skipped the optimizer's step, because gradients overflowed."""
    grad_norm: torch.Tensor | None = None
    """The norm of the window's gradient before clipping, where it is clipped."""
    losses: dict[str, torch.Tensor] | None = None
    """Each loss's mean, where the loss function returns several."""


class Step:
    """Runs a model's training steps.

    `loss(model, batch)` returns a mean, or `(sum, count)`, or a dictionary of such losses, which are added. The loader's
    batches go to `step(batch)` as they come; they are split, moved to the model's device and weighed here.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        plan: Any = None,
        *,
        levers: Mapping[str, Any] | None = None,
        micro_batch: int | None = None,
        accumulate: int | None = None,
        clip_grad_norm: float | None = None,
        scheduler: Any = None,
        precision: str | None = None,
        scaler: Any = None,
        count: Callable[[Any], float | Mapping[str, float]] | None = None,
        batch_size: Callable[[Any], int] | None = None,
        device: torch.device | str | None = None,
        group: Any = None,
        timeout: float = 600.0,
        backup: bool = False,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                "LBFGS evaluates the model several times in one step, which `memfit.Step` does not do\n"
                "hint: write its closure by hand, and run the evaluation under `memfit.inference`"
            )
        self.model, self._ranks = ranks_of(model, group, timeout)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._loss = loss
        self._count = count
        self._batch_size = batch_size
        self._clip = clip_grad_norm
        self.device, self._move = device_of(self.model, device)
        self._cuda = self.device.type == "cuda"
        self._planned = Planned(
            plan,
            levers,
            target_of(self.model, optimizer, self.device),
            micro_batch=micro_batch,
            accumulate=accumulate,
            precision=precision,
        )
        self._target = self._planned.target
        self._accumulate = self._planned.accumulate
        self._precision = Precision(self._planned.precision, self.device, scaler)
        self._updates = Updates(optimizer, backup)
        self._exactness = Exactness(self.model)
        # What is updated in its backward cannot be run in parts.
        whole = self._target.updates_in_backward
        if whole:
            self._refuse_what_needs_gradients()
        self._controller = _core.Controller(
            accumulate=self._accumulate,
            micro_batch=None if whole else self._planned.micro_batch,
            careful=self._cuda and not whole,
            pairs=self._exactness.normalises,
        )
        self._buffers = Buffers(self.model)
        self._stateful: set[str] = set()
        self._window: list[Batch] = []
        self._parameters: list[nn.Parameter] = []
        self._random: RandomState | None = None
        # Gradients of batches that another process ran before this one took over in mid-window.
        self._inherited: dict[str, torch.Tensor] = {}
        self._own_parts = False
        self._last_size = 1
        self._fragmentation = Fragmentation()
        # What was live before the window.
        self._base = 0
        # Whether each part's own peak is looked at, whatever the highest one was.
        self._measures = False
        if self._cuda:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            self._controller.gradients_take(sum(parameter.nbytes for parameter in trained))
        self._why = ""
        self._watch = Watch(self._controller, self._precision, self.device, self._fragmentation)
        self._closed = False

    def _refuse_what_needs_gradients(self) -> None:
        """With the optimizer in the backward there is no moment at which all gradients are there."""
        wanted = {
            "accumulate": self._accumulate > 1,
            "clip_grad_norm": self._clip is not None,
            'precision="fp16"': self._precision.scaler is not None,
            "several ranks": self._ranks.world > 1,
        }
        for name, is_wanted in wanted.items():
            if is_wanted:
                self._planned.close()
                raise ValueError(
                    f"`optimizer-in-backward` cannot stand beside {name}: each gradient is gone as soon as it is there\n"
                    "hint: leave one of them out"
                )

    # ------------------------------------------------------------------------------------------- the step

    def __call__(self, batch: Any) -> Result:
        """Run a batch, and step the optimizer if it completes a window."""
        if self._closed:
            raise RuntimeError("this `memfit.Step` was closed")
        batch = self._target.arrive(batch)
        size = self._batch_size(batch) if self._batch_size is not None else None
        entry = Batch(batch, size)
        expected = float(entry.items)
        if self._count is not None:
            counted = self._count(batch)
            entry.counts = (
                {name: float(n) for name, n in counted.items()} if isinstance(counted, Mapping) else None
            )
            expected = float(next(iter(counted.values())) if isinstance(counted, Mapping) else counted)
        if self._controller.empty:
            self._begin_window()
        self._controller.arrive(entry.shape, entry.elements, entry.items, expected, entry.costs)
        self._window.append(entry)
        whole = self._controller.whole
        tally, retries, norm, _ = self._run(newest=True, whole=whole)
        parts = tally.parts
        changed = self._planned.changed + tally.changed
        if parts > 1:
            changed += self._exactness.of_parts(self._stateful)
        skipped = self._finish_window() if whole else False
        return Result(tally.mean(), parts, retries, changed, whole, skipped, norm, tally.named())

    def _run(self, newest: bool, whole: bool) -> tuple[Tally, int, torch.Tensor | None, float]:
        """Run until all ranks' parts ran, and the gradients are ready to be stepped with where the window is whole: the
        newest batch's tally, how often it was tried again, the gradient's norm, and what all ranks counted."""
        tally = Tally(self.device)
        outcome, fault = "done", None
        retries = 0
        while True:
            if newest or retries:
                outcome, tally, fault = self._run_window(retries)
            if whole or self._ranks.inside:
                verdict, total = self._ranks.agree(self._controller, outcome, self.model)
            else:
                # Nothing is exchanged before the window is whole, so the other ranks need not know.
                verdict, total = ("step" if outcome == "done" else outcome), 0.0
            norm = None
            if verdict == "step":
                # A rank without a rest takes part in the end of an epoch, where no rank may have one.
                if whole and not (total == 0 and self._controller.empty):
                    norm, fault = self._make_ready(total)
                    if fault is not None:
                        verdict = self._decide(max(len(self._window) - 1, 0), self._last_size, fault)
                if verdict == "step":
                    return tally, retries, norm, total
            if verdict == "over":
                self._roll_back()
                raise self._explain(fault, total)
            retries += 1
            self._roll_back(keep=True)

    def _decide(self, index: int, size: int, fault: Fault) -> str:
        """What follows from a failure: "again" or "over"."""
        if self._target.updates_in_backward:
            self._why = "whole"
            return "over"
        decision = self._controller.failed(
            index, size, fault.types, fault.message, fault.free, fault.capacity
        )
        self._why = decision
        return "again" if decision == "again" and self._ranks.can_retry else "over"

    def finish(self) -> bool:
        """Step with a window that has fewer batches than `accumulate`, at an epoch's end; whether there was one."""
        if self._controller.empty and self._ranks.world == 1:
            return False
        # A rank without a rest still takes part, since others may have one.
        if self._controller.empty:
            self._begin_window()
        _, _, _, total = self._run(newest=False, whole=True)
        if total == 0 and self._controller.empty:
            return False
        self._finish_window()
        return True

    def probe(self, loader: Iterable[Any], *, batches: int = 1000, seconds: float = 20.0) -> Probe:
        """Run the loader's largest batch, and some smaller ones, forward and backward without a step, so that what each
        shape needs is known before the training meets it.

        `batches` and `seconds` bound how much of the loader is looked at. Parameters, buffers, random numbers and gradients
        are as before. Raises `memfit.StepDoesNotFit` if the largest batch does not fit even sample by sample.
        """
        if not self._controller.empty:
            raise RuntimeError("a window is open: probe before the first batch, or after `step.finish()`")
        if self._target.updates_in_backward:
            raise RuntimeError(
                "`optimizer-in-backward` steps in the backward, so nothing can be tried without a step\n"
                "hint: probe without this lever"
            )
        return probed(self, loader, batches, seconds)

    def _try(self, entry: Batch) -> None:
        """Run a batch, and let nothing come of it but what it needed."""
        self._begin_window()
        self._measures = True
        self._controller.arrive(entry.shape, entry.elements, entry.items, float(entry.items), entry.costs)
        self._window.append(entry)
        retries = 0
        try:
            while (ended := self._run_window(retries))[0] != "done":
                if ended[0] == "over":
                    raise self._explain(ended[2], 0.0)
                retries += 1
                self._roll_back(keep=True)
        finally:
            self._measures = False
            if self._window:
                self._roll_back()

    def over(self, loader: Iterable[Any]) -> Iterator[Result]:
        """Run all of a loader's batches, the last window's rest included."""
        for batch in self._target.load(loader):
            yield self(batch)
        self.finish()

    def _begin_window(self) -> None:
        if not self._parameters or self._controller.windows % _AGAIN == 0:
            # Walking a model takes longer than all else that is done here.
            self._parameters = list(self.model.parameters())
        self._drop_gradients()
        self._buffers.keep()
        self._random = RandomState([self.device])
        self._ranks.begin()
        self._base = live(self.device)
        if self._target.updates_in_backward:
            self._updates.begin()

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _run_window(self, attempt: int) -> tuple[str, Tally, Fault | None]:
        """Run what is to be run: the newest batch, or after a failure the whole window again."""
        first = 0 if attempt else len(self._window) - 1
        for index in range(first, len(self._window)):
            # Of all batches that are run, the newest is the one that is told of.
            tally = Tally(self.device)
            fault, size = self._run_batch(index, tally)
            if fault is not None:
                return self._decide(index, size, fault), tally, fault
        return "done", tally, None

    def _run_batch(self, index: int, tally: Tally) -> tuple[Fault | None, int]:
        """Run a batch part by part; what went wrong, and how many samples the part had."""
        entry = self._window[index]
        versions = entry.versions() if not self._own_parts else None
        while True:
            part = self._controller.next(index, self._room())
            turn = self._ranks.turn(self._controller, part is not None)
            if turn == "end":
                break
            if turn == "failed":
                return None, 0
            start, stop = part or (0, 1)
            if self._measures and self._cuda:
                torch.cuda.reset_peak_memory_stats(self.device)
            before = 0 if self._measures else peak(self.device)
            fault, told = None, False
            try:
                self._run_part(entry, start, stop, tally, idle=part is None)
            except PeerFailed as error:
                forget(error)
                told = True
            except Exception as error:
                fault = Fault.of(error, self.device)
                if fault.kind in ("other", "sticky"):
                    # It is the user's, and goes on as it came; the other ranks are not left waiting for this one.
                    if self._ranks.world > 1 and (self._controller.whole or self._ranks.inside):
                        with contextlib.suppress(RuntimeError):
                            if fault.kind == "other":
                                self._ranks.failed()
                            self._ranks.agree(self._controller, "over", self.model)
                    self._roll_back()
                    raise
                forget(error)
            # The exception is gone here, and with it all that it held.
            if told:
                return None, 0
            if fault is not None:
                if self._target.updates_in_backward:
                    self._undo_backward(fault)
                collect(self.device)
                self._ranks.failed()
                return fault, stop - start
            if part is None:
                continue
            self._last_size = stop - start
            if self._cuda and index == 0 and start == 0:
                # What stays after a window's first part are its gradients.
                self._controller.gradients_take(max(live(self.device) - self._base, 0))
            after = peak(self.device)
            known = self._cuda and after > before
            self._controller.passed(index, stop - start, max(after - self._base, 0) if known else None)
        if versions is not None and entry.versions() != versions:
            self._own_parts = True
            tally.changed += self._exactness.edited()
        return None, 0

    def _room(self) -> int | None:
        """What a part may need beyond what was live before its window."""
        most = budget(self.device, self._fragmentation.now(self.device))
        return None if most is None else max(most - self._base, 0)

    def _undo_backward(self, fault: Fault) -> None:
        """A backward that updates as it goes failed: it leaves the parameters as they were, or it is said."""
        try:
            self._updates.undo(fault)
        except StepInvalid:
            self._roll_back()
            raise

    def _run_part(self, entry: Batch, start: int, stop: int, tally: Tally, idle: bool) -> None:
        """Forward and backward of the samples from start to stop; idle, only for the sake of other ranks."""
        whole = start == 0 and stop == entry.items
        part = entry.part(start, stop, self.device if self._move else None, own=self._own_parts)
        if not whole and self._count is None and tally.looks_at_labels:
            tally.labels(ignored_labels(part))
        part = self._target.prepare(part)
        watch = contextlib.nullcontext() if whole else self._exactness.watch_coupling(part, stop - start)
        with self._precision(), self._target.around(), watch:
            returned = self._loss(self.model, part)
        counted = self._count(part) if self._count is not None else float(stop - start)
        losses, counts = read_losses(returned, counted)
        first = entry is self._window[0] and start == 0 and not self._inherited
        if first and self._count is None and not self._ranks.inside and not is_mean(returned):
            # Only now is it known what a sample counts; all of the window is taken to be like its first part.
            per_sample = next(iter(counts.values())) / (stop - start)
            self._controller.divide_by(per_sample * entry.items * self._accumulate)
        divisor = self._controller.divisor
        main = next(iter(counts.values()))
        loss = None
        for name, (value, weight) in losses.items():
            # Every loss has its own mean: its divisor is to the first one's as its count is to the first one's.
            ratio = tally.ratio(name, main, counts[name], entry.counts)
            own = divisor * ratio
            factor = weight / own if own else math.inf
            share = value if factor == 1.0 else value * factor
            loss = share if loss is None else loss + share
        assert loss is not None
        scaler = self._precision.scaler
        if not loss.requires_grad:
            raise RuntimeError(
                "the loss has no gradient: it was computed under `no_grad`, or detached\n"
                "hint: return the loss itself from the loss function, without `.item()` or `.detach()`"
            )
        if idle:
            loss = loss * 0.0
        (scaler.scale(loss) if scaler is not None else loss).backward()
        if idle:
            return
        self._controller.count(main)
        tally.add(losses, counts)
        if tally.ratios_differ:
            tally.changed += self._exactness.ratios()
        if tally.labels_differ:
            tally.changed += self._exactness.uncounted()

    # ------------------------------------------------------------------------------------------- the window's end

    def _make_ready(self, total: float) -> tuple[torch.Tensor | None, Fault | None]:
        """Correct, exchange, unscale and clip the window's gradients: their norm where they are clipped, or what went
        wrong."""
        try:
            return self._correct(total), None
        except Exception as error:
            fault = Fault.of(error, self.device)
            if fault.kind in ("other", "sticky") or self._ranks.world > 1:
                self._roll_back()
                raise
            forget(error)
        return None, fault

    def _correct(self, total: float) -> torch.Tensor | None:
        correction = self._ranks.correction(self._controller, total)
        if self._inherited:
            for name, parameter in self.model.named_parameters():
                if name in self._inherited:
                    inherited = self._inherited[name].to(parameter.device)
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    local(parameter.grad).add_(inherited)
        if correction != 1.0:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            if gradients:
                torch._foreach_mul_(gradients, correction)
        if self._ranks.world > 1:
            self._ranks.reduce(self.model.parameters(), self.model.buffers())
        scaler = self._precision.scaler
        if scaler is not None:
            # Here, where all of it can be done again, and not within the optimizer's step.
            scaler.unscale_(self.optimizer)
        if self._clip is not None:
            norm = nn.utils.clip_grad_norm_(self._parameters, self._clip)
            return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return None

    def _finish_window(self) -> bool:
        """Step, and begin anew; whether the scaler skipped the step."""
        skipped = self._optimize()
        self._stateful = self._buffers.settle()
        self._window.clear()
        self._random = None
        self._inherited = {}
        self.optimizer.zero_grad(set_to_none=True)
        self._drop_gradients()
        self._controller.stepped(self._watch.flushed())
        self._watch.stepped(skipped)
        return skipped

    def _optimize(self) -> bool:
        scaler = self._precision.scaler
        try:
            skipped = self._updates.run(lambda: self._step_optimizer(scaler), self.device)
        except StepDoesNotFit:
            self._roll_back()
            raise
        if self.scheduler is not None and not skipped:
            self.scheduler.step()
        return skipped

    def _step_optimizer(self, scaler: Any) -> bool:
        if scaler is None:
            self.optimizer.step()
            return False
        scale = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        return bool(scaler.get_scale() < scale)

    def _roll_back(self, keep: bool = False) -> None:
        """Everything is as it was before the window; with `keep`, its batches are run again."""
        self._drop_gradients()
        self._buffers.restore()
        if self._random is not None:
            self._random.restore()
        self._ranks.roll_back()
        scaler = self._precision.scaler
        if scaler is not None:
            # It remembers that it unscaled gradients that are gone.
            getattr(scaler, "_per_optimizer_states", {}).pop(id(self.optimizer), None)
        collect(self.device)
        if keep:
            self._controller.restart()
        else:
            self._window.clear()
            self._random = None
            self._controller.abandon()

    def _explain(self, fault: Fault | None, rank: float) -> Exception:
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
        return StepDoesNotFit(
            f"{why}; parameters, buffers and random numbers are as they were before the step\n"
            "hint: `memfit run --gpu NAME -- python train.py` shows what fills the memory; checkpointing (exact) and bf16 "
            f"(precision) make a sample smaller\n{fault.message}"
        )

    @property
    def retries(self) -> int:
        """Failures so far that a later attempt made good."""
        return self._controller.survived

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._controller.windows

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs besides the model's, the optimizer's and the scheduler's own state."""
        scaler = self._precision.scaler
        open_window = not self._controller.empty
        return {
            "version": 1,
            "controller": self._controller.memory(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": RandomState([self.device]).state_dict(),
            "gradients": {
                name: local(parameter.grad.detach()).to("cpu", copy=True)
                for name, parameter in self.model.named_parameters()
                if open_window and parameter.grad is not None
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if state.get("version") != 1:
            raise ValueError(
                f"this state has version {state.get('version')}, and this memfit reads version 1"
            )
        self._controller.remember(state["controller"])
        if state["scaler"] is not None and self._precision.scaler is not None:
            self._precision.scaler.load_state_dict(state["scaler"])
        self._inherited = dict(state["gradients"])
        RandomState.from_state_dict(dict(state["random"])).restore()
        if not self._controller.empty:
            self._begin_window()

    def close(self) -> None:
        """Undo what was set; a window that is still open is dropped, and said so."""
        if self._closed:
            return
        if not self._controller.empty:
            warn(
                "the last window was not stepped with: call `step.finish()` at the end of an epoch, or run the loader with "
                "`step.over(loader)`"
            )
        self._precision.close()
        self._ranks.close()
        self._planned.close()
        self._closed = True

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._controller.empty:
            self.finish()
        with contextlib.suppress(Exception):
            self.close()
