"""One training step that equals the whole batch's, and that memory cannot stop."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn

from memfit import _core

from .batches import Batch
from .device import budget, device_of, fragmented, local, peak
from .exactness import Exactness, ignored_labels
from .faults import Fault, StepDoesNotFit, collect, forget
from .precision import Precision
from .ranks import ranks_of
from .sharded import PeerFailed
from .transaction import Buffers, RandomState
from .updates import Updates

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
        *,
        micro_batch: int | None = None,
        accumulate: int = 1,
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
        self._accumulate = accumulate
        self._updates = Updates(optimizer, backup)
        self.device, self._move = device_of(self.model, device)
        self._precision = Precision(precision, self.device, scaler)
        self._cuda = self.device.type == "cuda"
        self._exactness = Exactness(self.model)
        self._controller = _core.Controller(
            accumulate=accumulate,
            micro_batch=micro_batch,
            careful=self._cuda,
            pairs=self._exactness.normalises,
        )
        self._buffers = Buffers(self.model)
        self._stateful: set[str] = set()
        self._window: list[Batch] = []
        self._random: RandomState | None = None
        # Gradients of batches that another process ran before this one took over in mid-window.
        self._inherited: dict[str, torch.Tensor] = {}
        self._own_parts = False
        self._flushes = 0
        self._leak_said = False
        self._trouble_said = False
        self._closed = False

    # ------------------------------------------------------------------------------------------- the step

    def __call__(self, batch: Any) -> Result:
        """Run a batch, and step the optimizer if it completes a window."""
        if self._closed:
            raise RuntimeError("this `memfit.Step` was closed")
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
        retries = 0
        while True:
            outcome, tally, fault = self._run_window(retries)
            if self._controller.whole or self._ranks.inside:
                verdict, total = self._ranks.agree(self._controller, outcome, self.model)
            else:
                # Nothing is exchanged before the window is whole, so the other ranks need not know.
                verdict, total = ("step" if outcome == "done" else outcome), 0.0
            if verdict == "step":
                break
            if verdict == "over":
                self._roll_back()
                raise self._explain(fault, total)
            retries += 1
            self._roll_back(keep=True)
        parts = tally.parts
        changed = tally.changed + (self._exactness.of_parts(self._stateful) if parts > 1 else ())
        stepped, skipped, norm = False, False, None
        if self._controller.whole:
            skipped, norm = self._finish_window(total)
            stepped = True
        return Result(tally.mean(), parts, retries, changed, stepped, skipped, norm, tally.named())

    def finish(self) -> bool:
        """Step with a window that has fewer batches than `accumulate`, at an epoch's end; whether there was one."""
        if self._controller.empty and self._ranks.world == 1:
            return False
        # A rank without a rest still takes part, since others may have one.
        if self._controller.empty:
            self._begin_window()
        verdict, total = self._ranks.agree(self._controller, "done", self.model)
        if verdict == "step" and total == 0 and self._controller.empty:
            return False
        if verdict != "step":
            self._roll_back()
            raise self._explain(None, total)
        self._finish_window(total)
        return True

    def over(self, loader: Iterable[Any]) -> Iterator[Result]:
        """Run all of a loader's batches, the last window's rest included."""
        for batch in loader:
            yield self(batch)
        self.finish()

    def _begin_window(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None
        self._buffers.keep()
        self._random = RandomState([self.device])
        self._ranks.begin()

    def _run_window(self, attempt: int) -> tuple[str, _Tally, Fault | None]:
        """Run what is to be run: the newest batch, or after a failure the whole window again."""
        first = 0 if attempt else len(self._window) - 1
        for index in range(first, len(self._window)):
            # Of all batches that are run, the newest is the one that is told of.
            tally = _Tally(self.device)
            fault, size = self._run_batch(index, tally)
            if fault is not None:
                decision = self._controller.failed(
                    index, size, fault.types, fault.message, fault.free, fault.capacity
                )
                if decision == "again" and self._ranks.can_retry:
                    return "again", tally, fault
                self._why = decision
                return "over", tally, fault
        return "done", tally, None

    def _run_batch(self, index: int, tally: _Tally) -> tuple[Fault | None, int]:
        """Run a batch part by part; what went wrong, and how many samples the part had."""
        entry = self._window[index]
        versions = entry.versions() if not self._own_parts else None
        while True:
            part = self._controller.next(index, budget(self.device, fragmented(self.device)))
            turn = self._ranks.turn(self._controller, part is not None)
            if turn == "end":
                break
            if turn == "failed":
                return None, 0
            start, stop = part or (0, 1)
            before = peak(self.device)
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
                collect(self.device)
                self._ranks.failed()
                return fault, stop - start
            if part is None:
                continue
            after = peak(self.device)
            self._controller.passed(index, stop - start, after if after > before else None)
        if versions is not None and entry.versions() != versions:
            self._own_parts = True
            tally.changed += self._exactness.edited()
        return None, 0

    def _run_part(self, entry: Batch, start: int, stop: int, tally: _Tally, idle: bool) -> None:
        """Forward and backward of the samples from start to stop; idle, only for the sake of other ranks."""
        whole = start == 0 and stop == entry.items
        part = entry.part(start, stop, self.device if self._move else None, own=self._own_parts)
        if not whole and self._count is None and tally.looks_at_labels:
            tally.labels(ignored_labels(part))
        watch = contextlib.nullcontext() if whole else self._exactness.watch_coupling(part, stop - start)
        with self._precision(), watch:
            returned = self._loss(self.model, part)
        sums, counts = self._read(returned, part, stop - start)
        first = entry is self._window[0] and start == 0 and not self._inherited
        if first and self._count is None and not self._ranks.inside and not _is_mean(returned):
            # Only now is it known what a sample counts; all of the window is taken to be like its first part.
            per_sample = next(iter(counts.values())) / (stop - start)
            self._controller.divide_by(per_sample * entry.items * self._accumulate)
        divisor = self._controller.divisor
        main = next(iter(counts.values()))
        loss = None
        for name, total in sums.items():
            # Every loss has its own mean: its divisor is to the first one's as its count is to the first one's.
            ratio = tally.ratio(name, main, counts[name], entry.counts)
            share = total / divisor if ratio == 1.0 else total / (divisor * ratio)
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
        tally.add(sums, counts)
        if tally.ratios_differ:
            tally.changed += self._exactness.ratios()
        if tally.labels_differ:
            tally.changed += self._exactness.uncounted()

    def _read(self, returned: Any, part: Any, items: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """The sums and counts in what the loss function returned."""
        named = returned if isinstance(returned, Mapping) else {"": returned}
        if not named:
            raise TypeError("the loss function returned an empty dictionary: there is nothing to learn from")
        counted = self._count(part) if self._count is not None else float(items)
        sums: dict[str, torch.Tensor] = {}
        counts: dict[str, float] = {}
        for name, value in named.items():
            weight = float(counted[name] if isinstance(counted, Mapping) else counted)
            if isinstance(value, torch.Tensor):
                if value.numel() != 1:
                    raise TypeError(
                        f"the loss function returned a tensor of shape {tuple(value.shape)}\n"
                        "hint: return the mean of the losses, or `(losses.sum(), count)`"
                    )
                sums[name], counts[name] = value.reshape(()) * weight, weight
            elif isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.Tensor):
                sums[name], counts[name] = value[0].reshape(()), float(value[1])
            else:
                raise TypeError(
                    f"the loss function returned {type(value).__name__}\n"
                    "hint: return a mean, `(sum, count)`, or a dictionary of these"
                )
        return sums, counts

    # ------------------------------------------------------------------------------------------- the window's end

    def _finish_window(self, total: float) -> tuple[bool, torch.Tensor | None]:
        """Exchange, correct, clip and step."""
        correction = self._ranks.correction(self._controller, total)
        for name, parameter in self.model.named_parameters():
            if name in self._inherited:
                inherited = self._inherited[name].to(parameter.device)
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).add_(inherited)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if correction != 1.0 and gradients:
            torch._foreach_mul_(gradients, correction)
        self._ranks.reduce(self.model.parameters(), self.model.buffers())
        skipped, norm = self._optimize()
        self._stateful = self._buffers.settle()
        self._window.clear()
        self._random = None
        self._inherited = {}
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.model.parameters():
            parameter.grad = None
        self._controller.stepped(self._flushed())
        self._watch(skipped)
        return skipped, norm

    def _optimize(self) -> tuple[bool, torch.Tensor | None]:
        scaler = self._precision.scaler
        norm = None
        if self._clip is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        try:
            skipped = self._updates.run(lambda: self._step_optimizer(scaler), self.device)
        except StepDoesNotFit:
            self._roll_back()
            raise
        if self.scheduler is not None and not skipped:
            self.scheduler.step()
        return skipped, norm

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
        for parameter in self.model.parameters():
            parameter.grad = None
        self._buffers.restore()
        if self._random is not None:
            self._random.restore()
        self._ranks.roll_back()
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
            "too-often": "memory did not suffice, however small the parts were",
        }.get(self._why, "memory did not suffice")
        if not self._ranks.can_retry:
            why += ", and with this PyTorch, FSDP2 cannot go on after a failure (2.15 has `FSDPModule.reset_iter_state`)"
        return StepDoesNotFit(
            f"{why}; parameters, buffers and random numbers are as they were before the step\n"
            "hint: `memfit run --gpu NAME -- python train.py` shows what fills the memory; checkpointing (exact) and bf16 "
            f"(precision) make a sample smaller\n{fault.message}"
        )

    # ------------------------------------------------------------------------------------------- watching

    def _flushed(self) -> bool:
        """Whether the allocator had to give memory back and ask again since the last time."""
        if not self._cuda:
            return False
        flushes = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)
        more, self._flushes = flushes > self._flushes, flushes
        return bool(more)

    def _watch(self, skipped: bool) -> None:
        scaler = self._precision.scaler
        if scaler is not None:
            trouble = self._controller.scaled(float(scaler.get_scale()), skipped)
            if trouble is not None and not self._trouble_said:
                self._trouble_said = True
                warnings.warn(
                    f'memfit: {trouble}; `precision="bf16"` has the range of fp32, and needs no scaler',
                    stacklevel=4,
                )
        if self._cuda:
            live = torch.cuda.memory_allocated(self.device)
            leak = self._controller.live(live, budget(self.device, fragmented(self.device)))
            if leak is not None and not self._leak_said:
                self._leak_said = True
                each, left = leak
                warnings.warn(
                    f"memfit: live memory grows by {each / 2**20:.1f} MiB a step"
                    + (f", and will not suffice in {left} steps" if left is not None else "")
                    + "; `memfit.holders()` says who holds it",
                    stacklevel=4,
                )

    # ------------------------------------------------------------------------------------------- from run to run

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
            warnings.warn(
                "memfit: the last window was not stepped with: call `step.finish()` at the end of an epoch, or run the "
                "loader with `step.over(loader)`",
                stacklevel=2,
            )
        self._precision.close()
        self._ranks.close()
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


class _Tally:
    """What a batch's parts came to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, float] = {}
        self._ignored: list[float] = []
        self._ratios: dict[str, float] = {}
        self.ratios_differ = False
        self.looks_at_labels = True
        self.parts = 0
        self.changed: tuple[str, ...] = ()

    @property
    def counted(self) -> float:
        return next(iter(self._counts.values()), 0.0)

    @property
    def labels_differ(self) -> bool:
        return len(set(self._ignored)) > 1

    def ratio(self, name: str, main: float, count: float, whole: Mapping[str, float] | None) -> float:
        """A loss's count to the first one's: over the whole batch where that is known, else in its first part."""
        if whole is not None and name in whole:
            return whole[name] / max(next(iter(whole.values())), 1e-300)
        here = count / max(main, 1e-300)
        ratio = self._ratios.setdefault(name, here)
        self.ratios_differ |= abs(ratio - here) > 1e-9 * ratio
        return ratio

    def labels(self, share: float | None) -> None:
        if share is None:
            self.looks_at_labels = False
        else:
            self._ignored.append(share)

    def add(self, sums: dict[str, torch.Tensor], counts: dict[str, float]) -> None:
        self.parts += 1
        for name, total in sums.items():
            total = total.detach()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0.0) + counts[name]

    def _means(self) -> dict[str, torch.Tensor]:
        return {name: total / max(self._counts[name], 1e-300) for name, total in self._sums.items()}

    def mean(self) -> torch.Tensor:
        means = list(self._means().values())
        return sum(means[1:], means[0]) if means else torch.zeros((), device=self._device)

    def named(self) -> dict[str, torch.Tensor] | None:
        return None if set(self._sums) <= {""} else self._means()


def _is_mean(returned: Any) -> bool:
    values = returned.values() if isinstance(returned, Mapping) else [returned]
    return all(isinstance(value, torch.Tensor) for value in values)
