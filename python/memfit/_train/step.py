"""One training step that matches the whole batch and recovers from out-of-memory errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from memfit import _core
from memfit._levers.saying import warn

from .batches import Batch
from .caching import Embed, EmbeddingLoss
from .device import Meter, computes, device_of
from .differences import Verification
from .division import Division, is_batch_norm
from .exactness import Exactness
from .faults import StepDoesNotFit
from .noise import Noise, NoiseScale
from .optimizers import as_one, schedulers
from .outside import Outside
from .parameters import Parameters
from .part import Loss
from .pipelined import PipelinedRunner, runner_of
from .plans import Planned, target_of
from .precision import Precision
from .probing import Probe, probe_loader
from .randomness import RandomState
from .ranks import ranks_of
from .refusals import (
    refuse_embedding,
    refuse_embedding_on_ranks,
    refuse_noise,
    refuse_optimizer,
    refuse_scaler_in_pipeline,
    refuse_scheduler,
    refuse_without_gradients,
)
from .result import Result
from .rules import Rules
from .shares import Share
from .snapshot import Snapshot
from .undoing import Undoing
from .updates import Updates
from .verification import Verifier
from .watching import Watch
from .window import Window


class Step:
    """Runs a model's training steps. Several optimizers (one for matrices and one for the rest, say) step
    together.

    `loss(model, batch)` returns a mean, `(sum, count)`, or a dictionary of such losses, which are added. Pass
    the loader's batches to `step(batch)` unchanged: they are divided into micro-batches, moved to the model's
    device and weighted here.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
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
        batch_dim: int = 0,
        split: Callable[[Any, int, int], Any] | None = None,
        embed: Embed | None = None,
        whole: bool | None = None,
        modules: Sequence[nn.Module] = (),
        state: Sequence[Any] = (),
        allow: str | None = None,
        group: Any = None,
        timeout: float = 600.0,
        backup: bool = False,
        noise_scale: bool = False,
    ) -> None:
        refuse_optimizer(optimizer)
        refuse_scheduler(scheduler)
        for name, number in (("micro_batch", micro_batch), ("accumulate", accumulate)):
            if number is not None and number < 1:
                raise ValueError(f"`{name}` is {number}, but has to be at least 1")
        refuse_embedding(embed, whole)
        embedded = EmbeddingLoss(embed, loss) if embed is not None else None
        loss = embedded.of_whole_batch if embedded is not None else loss
        self.model, self._ranks = ranks_of(model, group, timeout)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._optimizer = optimizer = as_one(optimizer)
        self._count = count
        self._rules = Rules(batch_size, batch_dim, split)
        self._clip = clip_grad_norm
        self.device, self._move = device_of(self.model, device)
        self._planned = Planned(
            plan,
            levers,
            target_of(self.model, optimizer, self.device),
            micro_batch=micro_batch,
            accumulate=accumulate,
            precision=precision,
        )
        self._shared: Share | None = None
        if "shard" in self._planned.names:
            # Sharding adds collectives to the forward and backward passes.
            self.model, self._ranks = ranks_of(self._planned.model, group, timeout)
        if self._planned.parallel is not None:
            self._shared = Share(self._planned, self.model, self.device, allow)
        self._target = self._planned.target
        self._accumulate = self._planned.accumulate
        self._precision = Precision(self._planned.precision, self.device, scaler)
        self._updates = Updates(optimizer, backup)
        # With the optimizer in the backward pass, a batch cannot be divided.
        in_backward = self._target.updates_in_backward
        with self._closing_on_error():
            if in_backward:
                refuse_without_gradients(
                    self._accumulate, clip_grad_norm, self._precision.scaler, self._ranks.world
                )
            refuse_embedding_on_ranks(embed, self._ranks.world)
            refuse_scaler_in_pipeline(self._precision.scaler, self._ranks.pipes)
        meter = Meter(self.device)
        # Batch normalisation cannot compute statistics of a single sample.
        pairs = any(is_batch_norm(each) for each in self.model.modules())
        self._controller = _core.Controller(
            accumulate=self._accumulate,
            micro_batch=None if in_backward or self._ranks.pipes else self._planned.micro_batch,
            # A batch that is embedded first is divided before its first micro-batch runs.
            careful=meter.cuda and not in_backward and not self._ranks.alike and embed is None,
            pairs=pairs,
        )
        parameters = Parameters(self.model, optimizer)
        if meter.cuda:
            trained = [parameter for parameter in parameters.all if parameter.requires_grad]
            self._controller.gradients_take(sum(parameter.nbytes for parameter in trained))
        self._meter = meter
        place = self.device if self._move else None
        outside = Outside(self.model, modules, state, loss)
        verifier = Verifier(
            self.model,
            modules,
            loss,
            count,
            parameters,
            self._precision,
            outside,
            self._target,
            place,
            self.device,
            pairs=pairs,
            widens=self._ranks.world == 1,
            embedded=embedded,
        )
        self._division = Division(
            self.model,
            verifier if computes() else None,
            allow or self._planned.allow,
            meets=self._ranks.inside,
        )
        self._runner = runner_of(self._ranks)(
            self.model, loss, count, self._controller, self._precision, self._target, self._division, place,
            embedded,
        )  # fmt: skip
        snapshot = Snapshot(self.model, modules, outside, self.device, watches=computes() and not in_backward)
        if isinstance(self._runner, PipelinedRunner):
            undoing = Undoing(self.model, modules, parameters, outside, self.device)
            self._runner.follow(self._planned.micro_batch, self._shared, undoing, snapshot, parameters)
        self._window = Window(
            self.model,
            parameters,
            self._controller,
            self._ranks,
            self._runner,
            meter,
            self._updates,
            self._precision,
            Exactness(),
            self._division,
            snapshot,
            divides=self._planned.micro_batch is not None,
            accumulate=self._accumulate,
            clip=clip_grad_norm,
            in_backward=in_backward,
            applied=self._planned.names,
        )
        self._noise: Noise | None = None
        if noise_scale:
            with self._closing_on_error():
                refuse_noise(in_backward or embed is not None or self._ranks.inside)
            self._noise = self._runner.noise = self._window.completion.noise = Noise(self._optimizer)
        self._parameters = parameters
        self._watch = Watch(self._controller, self._precision, meter)
        # User-defined optimizers may do more than clear gradients in `zero_grad`.
        self._zero_grad = type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
        self._closed = False

    @contextlib.contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Undo all levers if arguments are refused."""
        try:
            yield
        except ValueError:
            self._planned.close()
            raise

    def noise_scale(self) -> NoiseScale:
        """Return the gradient noise scale measured so far, with advice on the global batch."""
        if self._noise is None:
            raise RuntimeError(
                "the gradient noise scale is not measured\nhint: pass `noise_scale=True` to `memfit.Step`"
            )
        return self._noise.result()

    # ------------------------------------------------------------------------------------------- the step

    def __call__(self, batch: Any) -> Result:
        """Run a batch, and step the optimizer if it completes an accumulation window."""
        if self._closed:
            raise RuntimeError("this `memfit.Step` is closed")
        if self._shared is None:
            return self._run(batch)
        with self._shared.drawing(self._controller.windows, self._controller.empty):
            return self._run(batch)

    def _run(self, batch: Any) -> Result:
        if self._target.arrivals:
            batch = self._target.arrive(batch)
        entry = self.entry(batch)
        if self._shared is not None:
            entry = self._shared.take(entry, self._controller.empty, self._division, self._ranks)
        expected = 0.0 if entry.void else float(entry.items)
        if self._count is not None and not entry.void:
            counted = self._count(entry.value)
            if isinstance(counted, Mapping):
                entry.counts = {name: float(n) for name, n in counted.items()}
                # A loss with count zero is not an estimate for the others.
                expected = next(filter(None, entry.counts.values()), expected)
            else:
                expected = float(counted)
        if self._controller.empty:
            self._window.begin()
        self._window.add(entry, expected)
        whole = self._controller.whole
        try:
            tally, retries, norm, _ = self._window.run(newest=True, whole=whole)
            if self._shared is not None:
                self._shared.combine(tally)
            changed = self._planned.changed + tally.changed
            skipped = self._finish_window() if whole else False
        except BaseException:
            self._drop()
            raise
        return Result(tally, retries, tuple(dict.fromkeys(changed)), whole, skipped, norm)

    def _drop(self) -> None:
        """Roll back an open window after any exception, including an interrupt in a notebook."""
        if not self._controller.empty:
            self._window.roll_back()

    def computes_in(self, autocast: str | None) -> None:
        """Name the precision of the model's own autocast, such as "bfloat16": comparisons allow for its
        rounding.
        """
        self._division.lend(False, autocast)

    def entry(self, batch: Any) -> Batch:
        """Wrap a batch with the rules for dividing it."""
        return Batch(batch, self._rules)

    def verify(self, batch: Any) -> Verification:
        """Measure the effect of dividing a batch: run a few of its samples whole and in micro-batches, and
        compare gradients, losses and state. All state is restored afterwards.
        """
        if self._target.updates_in_backward:
            raise RuntimeError(
                "`optimizer-in-backward` updates parameters in the backward pass, so nothing can be "
                "compared\n"
                "hint: verify without this lever"
            )
        entry = self.entry(self._target.arrive(batch) if self._target.arrivals else batch)
        if entry.items < 2:
            raise ValueError("a batch of one sample cannot be split")
        self._parameters.look()
        size = min(self._planned.micro_batch or entry.items - 1, entry.items - 1)
        return self._division.verify(entry, size)

    def finish(self) -> bool:
        """Step with the rest of a window that has fewer batches than `accumulate`, at the end of an epoch;
        return `True` if there was one.
        """
        if self._controller.empty and self._ranks.world == 1:
            return False
        # A rank without remaining batches still takes part, since others may have some.
        if self._controller.empty:
            self._window.begin()
        try:
            _, _, _, total = self._window.run(newest=False, whole=True)
            if total == 0 and self._controller.empty:
                return False
            self._finish_window()
        except BaseException:
            self._drop()
            raise
        return True

    def probe(self, loader: Iterable[Any], *, batches: int = 1000, seconds: float = 20.0) -> Probe:
        """Run the loader's largest batch and some smaller ones, forward and backward without an optimizer
        step, to learn the memory that each shape needs before the training starts.

        `batches` and `seconds` limit how much of the loader is read. Parameters, buffers, random numbers,
        gradients and the loader are restored. Raises `memfit.StepDoesNotFit` if the largest batch does not
        fit even one sample at a time.
        """
        if not self._controller.empty:
            raise RuntimeError(
                "an accumulation window is open: call `probe` before the first batch, or after "
                "`step.finish()`"
            )
        if self._target.updates_in_backward:
            raise RuntimeError(
                "`optimizer-in-backward` updates parameters in the backward pass, so nothing can be tried "
                "without a step\n"
                "hint: probe without this lever"
            )
        return probe_loader(self, loader, batches, seconds)

    def over(self, loader: Iterable[Any]) -> Iterator[Result]:
        """Run all batches of a loader, including an incomplete last window."""
        for batch in self._target.load(loader):
            yield self(batch)
        self.finish()

    def _finish_window(self) -> bool:
        """Step the optimizer and start a new window; return `True` if the scaler skipped the step."""
        try:
            self._updates.run(self._precision.stepper(self._optimizer), self._meter)
        except StepDoesNotFit:
            self._window.roll_back()
            raise
        skipped = self._precision.update()
        if skipped:
            self._watch.overflowed(self._parameters.named(), type(self.model).__name__)
        self._window.settle()
        if self._target.idle:
            self._target.note_idle()
        if self._zero_grad:
            self._optimizer.zero_grad(set_to_none=True)
        self._watch.stepped(skipped)
        if self.scheduler is not None and not skipped:
            # Last: a scheduler that has ended raises an error, and the step is complete by then.
            for scheduler in schedulers(self.scheduler):
                scheduler.step()
        return skipped

    @property
    def verification(self) -> Verification | None:
        """The last comparison of a batch with its micro-batches; `None` before the first."""
        return self._division.last

    @property
    def has_open_window(self) -> bool:
        """`True` between the batches of an accumulation window."""
        return not self._controller.empty

    @property
    def retries(self) -> int:
        """Number of failed attempts so far that a later attempt recovered from."""
        return self._controller.survived

    @property
    def skipped(self) -> int:
        """Number of optimizer steps that the scaler skipped because fp16 gradients overflowed."""
        return self._controller.skipped

    @property
    def scales(self) -> list[float]:
        """The loss scales of the last windows; empty without a scaler."""
        return self._controller.scales

    @property
    def steps(self) -> int:
        """Number of optimizer steps so far."""
        return self._controller.windows

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed training needs besides that of the model, the optimizer and the
        scheduler.
        """
        scaler = self._precision.scaler
        return {
            "version": 1,
            "controller": self._controller.memory(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": RandomState([self.device]).state_dict(),
            "gradients": {} if self._controller.empty else self._window.gradients(),
            "losses": self._runner.losses.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the result of `state_dict`."""
        if state.get("version") != 1:
            raise ValueError(
                f"this state has version {state.get('version')}, but this version of memfit reads version 1"
            )
        self._controller.remember(state["controller"])
        if state["scaler"] is not None and self._precision.scaler is not None:
            self._precision.scaler.load_state_dict(state["scaler"])
            self._precision.loaded()
        RandomState.from_state_dict(dict(state["random"])).restore()
        self._window.take_over(state["gradients"], state.get("losses"))

    def close(self) -> None:
        """Undo all settings and levers; warn about and drop a window that is still open."""
        if self._closed:
            return
        if not self._controller.empty:
            warn(
                "the last accumulation window has no optimizer step yet: call `step.finish()` at the end of "
                "an epoch, or run the loader with `step.over(loader)`"
            )
        if self._noise is not None:
            self._noise.close()
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
