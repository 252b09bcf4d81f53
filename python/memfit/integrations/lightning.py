"""memfit in Lightning's `Trainer`: batches run in micro-batches that fit.

Takes the place of `BatchSizeFinder`, and of `accumulate_grad_batches` where it is only there to save memory.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ._libraries import require

# Both distributions have the same classes, each its own; a trainer of one takes callbacks of the same.
_LIBRARY = "lightning" if importlib.util.find_spec("lightning") is not None else "pytorch_lightning"
if importlib.util.find_spec(_LIBRARY) is None:
    require("lightning")
pl: Any = require(_LIBRARY, "lightning.pytorch" if _LIBRARY == "lightning" else "pytorch_lightning")

import torch
from torch import nn

from memfit._levers.saying import warn
from memfit._train.gradients import Gradients

from ._counters import Counters
from ._progress import Progress, joined
from ._settings import Settings

__all__ = ["Callback", "Settings"]

_AUTOCAST = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}
_PRECISIONS = {"bf16-mixed": "bf16", "16-mixed": "fp16"}


class _Logged(NamedTuple):
    """A call of `self.log` in a training step."""

    name: str
    value: Any
    keywords: dict[str, Any]


class Callback(Progress, pl.Callback):  # type: ignore[misc]
    """Runs training steps in micro-batches that fit: `Trainer(callbacks=[Callback()])`.

    It takes over the strategy's `training_step` and `backward` while the trainer fits.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self._trainer: Any = None
        self._undo: list[Callable[[], None]] = []
        self._forward: Callable[..., Any] = lambda: None
        self._run_backward: Callable[..., Any] = lambda: None
        self._logged: list[_Logged] = []
        self._output: Any = None
        # Gradients of the batch that just ran, until the trainer asks for its backward pass.
        self._ready: list[tuple[torch.Tensor, torch.Tensor]] = []

    # ----------------------------------------------------------------------------------------------- training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take over the strategy's forward and backward passes."""
        _refuse(trainer, pl_module)
        self._trainer = trainer
        strategy = trainer.strategy
        precision = str(trainer.precision)
        settings = self.settings
        arguments, not_applied = settings.gradient_arguments(_PRECISIONS.get(precision), strategy.root_device)
        if not_applied:
            warn(f"the plan is not applied in full: {'; '.join(not_applied)}")
        if settings.noise_scale and precision == "16-mixed":
            warn("the gradient noise scale is not measured: fp16 gradients are scaled by the trainer")
            arguments["noise_scale"] = False
        self._forward, self._run_backward = strategy.training_step, strategy.backward
        optimizer = trainer.optimizers[0]
        self._gradients = Gradients(
            pl_module,
            optimizer,
            self._loss,
            self._backward,
            unseen=self._keeper(pl_module),
            note=lambda: (self._output, list(self._logged)),
            autocast=_AUTOCAST.get(precision),
            over_window=settings.count is not None,
            accumulate=trainer.accumulate_grad_batches,
            **arguments,
        )
        strategy.training_step = self._training_step
        strategy.backward = self._put_gradients
        step = optimizer.step

        @functools.wraps(step)
        def update(closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
            # The closure runs the batch, which is complete before the optimizer steps.
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            assert self._gradients is not None
            self._gradients.update(functools.partial(step, *args, **kwargs))
            return loss

        optimizer.step = update

        def undo() -> None:
            del strategy.training_step, strategy.backward
            optimizer.step = step

        self._undo = [undo]

    def _keeper(self, module: Any) -> Callable[[], Callable[[], None]]:
        """Return a function that saves what the module and its metrics count, and returns one that restores
        it.
        """
        metrics = [each for each in module.modules() if hasattr(each, "metric_state")]
        counters = [Counters(each) for each in (module, *metrics)]

        def keep() -> Callable[[], None]:
            kept = [each.keep() for each in counters]

            def restore() -> None:
                self._logged.clear()
                for one in kept:
                    one()

            return restore

        return keep

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Give the strategy its passes back."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Give the strategy its passes back."""
        self._end()

    def _end(self) -> None:
        if self._gradients is None:
            return
        self._keep_noise()
        while self._undo:
            self._undo.pop()()
        self._gradients.close()
        self._gradients = None
        self._ready.clear()

    # ------------------------------------------------------------------------------------------- a batch

    def _training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch forward and backward in the strategy's place. The trainer clears gradients after the
        forward pass and then asks for the backward pass: the gradients are set aside until then.
        """
        gradients, trainer = self._gradients, self._trainer
        assert gradients is not None
        if not gradients.open:
            # Those of the last step: the trainer would clear them only after this batch's forward pass.
            for parameter in gradients.parameters:
                parameter.grad = None
        ends = not trainer.fit_loop._should_accumulate()
        result = gradients.add(batch, (args, kwargs), ends=ends)
        self._add_result(result)
        self._ready = [(each, each.grad) for each in gradients.parameters if each.grad is not None]
        self._log([logged for _, logged in gradients.notes], gradients.factors)
        loss = joined(gradients, [output for output, _ in gradients.notes])
        # The trainer needs a loss with a gradient, but its backward pass has run.
        loss = loss.detach().requires_grad_()
        return {**result.metrics, "loss": loss} if result.metrics else loss

    def _loss(self, module: nn.Module, batch: Any) -> Any:
        """Run the module's training step, and return its loss as the trainer would scale it."""
        assert self._gradients is not None
        args, kwargs = self._gradients.context
        self._logged.clear()
        module.log = self._record
        try:
            output = self._forward(batch, *args, **kwargs)
        finally:
            del module.log
        if output is None or (isinstance(output, Mapping) and output.get("loss") is None):
            raise TypeError(
                "`training_step` returned no loss, which memfit cannot run in micro-batches\n"
                "hint: leave such batches out of the loader, or return a loss of zero"
            )
        loss = output["loss"] if isinstance(output, Mapping) else output
        self._output = loss.detach()
        # With a count, losses are weighted over the whole window instead.
        scaled = loss / (1 if self.settings.count is not None else self._trainer.accumulate_grad_batches)
        return {**output, "loss": scaled} if isinstance(output, Mapping) else scaled

    def _backward(self, loss: torch.Tensor) -> None:
        self._run_backward(loss, self._trainer.optimizers[0])

    def _put_gradients(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ARG002
        """Put the gradients back, in place of the strategy's backward pass."""
        for parameter, gradient in self._ready:
            parameter.grad = gradient
        self._ready.clear()
        return closure_loss

    # --------------------------------------------------------------------------------------------- logging

    def _record(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        names = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")
        keywords = {**dict(zip(names, args, strict=False)), **kwargs}
        self._logged.append(
            _Logged(name, value.detach() if isinstance(value, torch.Tensor) else value, keywords)
        )

    def _log(self, parts: list[list[_Logged]], factors: list[float]) -> None:
        """Log once what a batch's micro-batches logged: numbers as means over the batch."""
        module = self._trainer.lightning_module
        if len(parts) == 1:
            for each in parts[0]:
                module.log(each.name, each.value, **each.keywords)
            return
        merged: dict[str, tuple[_Logged, list[tuple[Any, float]]]] = {}
        for logged, factor in zip(parts, factors, strict=True):
            for each in logged:
                _, values = merged.setdefault(each.name, (each, []))
                values.append((each.value, factor))
        for name, (each, values) in merged.items():
            total = sum([weight for _, weight in values])
            if total and all(_is_number(value) for value, _ in values):
                value = sum(value * (weight / total) for value, weight in values if weight)
            else:
                value = values[-1][0]
            module.log(name, value, **each.keywords)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.numel() == 1)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refuse(trainer: Any, module: Any) -> None:
    """Refuse ways of training in which the trainer does not run the backward pass, or not alone."""
    if not module.automatic_optimization:
        raise ValueError(
            "memfit's Lightning callback needs automatic optimization; this module steps its optimizers itself\n"
            "hint: use `memfit.Step` in its `training_step`"
        )
    if trainer.world_size > 1:
        raise ValueError(
            f"memfit's Lightning callback does not support {trainer.world_size} processes\n"
            "hint: train with `devices=1`, or with `memfit.Step`, which supports several"
        )
    if trainer.strategy.handles_gradient_accumulation or type(trainer.strategy).__name__ not in (
        "SingleDeviceStrategy",
    ):
        raise ValueError(
            f"memfit's Lightning callback does not support {type(trainer.strategy).__name__}\n"
            "hint: train on a single device, or with `memfit.Step`"
        )
    if len(trainer.optimizers) != 1:
        raise ValueError(f"memfit's Lightning callback supports one optimizer, not {len(trainer.optimizers)}")
