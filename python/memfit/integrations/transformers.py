"""memfit in Transformers' `Trainer`, and in trainers built on it, such as TRL's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ._libraries import require

require("transformers")

import torch
import transformers
from torch import nn

from memfit._levers.saying import warn
from memfit._train.gradients import Gradients

from ._arguments import training_arguments
from ._counters import Counters
from ._preferences import count_pairs, has_pairs, split_pairs
from ._progress import Progress, joined
from ._settings import Settings

__all__ = ["Callback", "Mixin", "Settings", "memfit_trainer", "training_arguments"]

# The mixin precedes a trainer in the MRO and calls its methods.
_Base: Any = object
# Label of tokens that do not count.
_IGNORED = -100


class Callback(Progress, transformers.TrainerCallback):  # type: ignore[misc]
    """Runs the steps of a trainer in micro-batches that fit. For a trainer whose class is not yours:
    `trainer.add_callback(Callback(trainer))`.

    Adds `memfit_micro_batches` and `memfit_retries` to the logs once a batch was divided.
    """

    def __init__(self, trainer: transformers.Trainer, settings: Settings | None = None) -> None:
        super().__init__()
        self.trainer = trainer
        self.settings = settings or getattr(trainer.args, "memfit_settings", None) or Settings()
        self._captured: tuple[torch.Tensor, dict[str, Any]] | None = None
        self._returned: torch.Tensor | None = None
        self._undo: Callable[[], None] = lambda: None
        if not isinstance(trainer, Mixin):
            trainer.training_step = functools.partial(self.training_step, trainer.training_step)

    # ------------------------------------------------------------------------------------------- a batch

    def training_step(
        self, forward: Callable[..., torch.Tensor], model: nn.Module, inputs: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Run a batch in the place of `forward`, the trainer's own `training_step`."""
        if self._gradients is None:
            self._gradients = self._begin(model)
        gradients, trainer = self._gradients, self.trainer
        items = args[0] if args else kwargs.get("num_items_in_batch")
        try:
            result = gradients.add(
                inputs,
                (forward, args, kwargs),
                ends=trainer.accelerator.sync_gradients,
                sums=self._is_scaled(items),
            )
        except BaseException:
            # The trainer calls no hook after an error.
            self._end()
            raise
        self._add_result(result)
        return joined(gradients, gradients.notes)

    def _is_scaled(self, items: Any) -> bool:
        """Return `True` if losses are sums over tokens, divided by the whole window's number of tokens."""
        trainer = self.trainer
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is not None:
            return bool(scaled) and items is not None
        accepts = getattr(trainer, "model_accepts_loss_kwargs", False)
        return items is not None and (
            bool(accepts) or getattr(trainer, "compute_loss_func", None) is not None
        )

    def _loss(self, model: nn.Module, inputs: Any) -> torch.Tensor:
        """Run the trainer's step up to its backward pass, and return the loss."""
        accelerator = self.trainer.accelerator
        self._captured = None

        def capture(loss: torch.Tensor, **kwargs: Any) -> None:
            self._captured = loss, kwargs

        accelerator.backward = capture
        try:
            assert self._gradients is not None
            forward, args, kwargs = self._gradients.context
            self._returned = forward(model, inputs, *args, **kwargs)
        finally:
            del accelerator.backward
        if self._captured is None:
            raise RuntimeError(
                f"{type(self.trainer).__name__}.training_step did not call `accelerator.backward(loss)`, so its "
                "batches cannot be split\nhint: use `memfit.Step` in a loop of your own"
            )
        return self._captured[0]

    def _backward(self, loss: torch.Tensor) -> None:
        assert self._captured is not None
        self.trainer.accelerator.backward(loss, **self._captured[1])

    # ----------------------------------------------------------------------------------------------- training

    def _begin(self, model: nn.Module) -> Gradients:
        trainer = self.trainer
        _refuse(trainer)
        args = trainer.args
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else None
        settings = self.settings
        if settings.noise_scale and precision == "fp16":
            warn("the gradient noise scale is not measured: fp16 gradients are scaled by the trainer")
            settings = replace(settings, noise_scale=False)
        if settings.split is None and has_pairs(trainer):
            settings = replace(settings, split=split_pairs, batch_size=count_pairs)
        arguments, not_applied = settings.gradient_arguments(precision, args.device)
        if not_applied:
            warn(f"the plan is not applied in full: {'; '.join(not_applied)}")
        counters = Counters(trainer)
        wrapped = trainer.optimizer
        gradients = Gradients(
            model,
            getattr(wrapped, "optimizer", wrapped),
            self._loss,
            self._backward,
            unseen=counters.keep,
            note=lambda: self._returned,
            autocast={"bf16": "bfloat16", "fp16": "float16"}.get(precision or ""),
            **{**arguments, "count": arguments["count"] or self._count},
        )
        step = wrapped.step

        @functools.wraps(step)
        def update(*args: Any, **kwargs: Any) -> None:
            gradients.update(functools.partial(step, *args, **kwargs))

        wrapped.step = update

        def undo() -> None:
            wrapped.step = step

        self._undo = undo
        return gradients

    def _count(self, inputs: Any) -> float:
        """Return the number of tokens that count, or of samples for labels of whole samples."""
        labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
        if isinstance(labels, torch.Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            return float((labels[..., 1:] if self._shifts() else labels).ne(_IGNORED).sum())
        assert self._gradients is not None
        return float(self._gradients.entry(inputs).items)

    def _shifts(self) -> bool:
        """Return `True` if the model predicts the next token, so that the first is never a target."""
        shifts = getattr(self.trainer, "_loss_shifts_labels", None)
        return bool(shifts) if shifts is not None else "CausalLM" in type(self.trainer.model).__name__

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Log how batches were divided."""
        if logs is not None and (self.retries or self.micro_batches > 1):
            logs["memfit_micro_batches"] = self.micro_batches
            logs["memfit_retries"] = self.retries

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Forget a training run that ended with an error."""
        self._end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Undo levers and hooks."""
        self._end()

    def _end(self) -> None:
        if self._gradients is None:
            return
        self._keep_noise()
        self._gradients.close()
        self._undo()
        self._gradients = None


class Mixin(_Base):  # type: ignore[misc]
    """Trains in micro-batches that fit: `class MyTrainer(Mixin, Trainer)`. Settings are passed as
    `MyTrainer(..., memfit=Settings(...))`; the callback with the counts is `trainer.memfit`.
    """

    def __init__(self, *args: Any, memfit: Settings | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.memfit = Callback(self, memfit)
        self.add_callback(self.memfit)

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run a batch in micro-batches that fit."""
        return self.memfit.training_step(super().training_step, model, inputs, *args, **kwargs)


def memfit_trainer(trainer: type) -> type:
    """Return a trainer's class with the mixin: `memfit_trainer(SFTTrainer)(model=…, memfit=Settings(…))`."""
    return type(f"Memfit{trainer.__name__}", (Mixin, trainer), {})


def _refuse(trainer: Any) -> None:
    """Refuse ways of training that do not run the backward pass in this process, on one device."""
    args = trainer.args
    several = {
        f"{args.world_size} processes": args.world_size > 1,
        f"DataParallel on {args.n_gpu} GPUs": args.n_gpu > 1,
        "DeepSpeed": getattr(trainer, "is_deepspeed_enabled", False),
        "FSDP": getattr(trainer, "is_fsdp_enabled", False),
    }
    for name, is_used in several.items():
        if is_used:
            raise ValueError(
                f"memfit's integration of Transformers does not support {name}\n"
                "hint: run it in one process on one GPU (`CUDA_VISIBLE_DEVICES=0`), or use `memfit.Step`"
            )
