"""Configures library trainers through their own settings, so that their counts, logs and averages stay
correct.

The Trainer of transformers averages over the tokens of all batches of a step, and its schedule counts steps.
So a plan's micro-batch size becomes the Trainer's own batch size, and its accumulation steps rise. If the
sizes do not divide evenly, or only some micro-batches run, the batch is divided from outside instead.
"""

import functools

from . import imports

# Upper limit on accumulation steps if the plan runs only part of a step.
MAX_PIECES = 8


def arm(planned):
    imports.after("transformers.trainer", lambda module: _transformers(planned, module.Trainer))
    imports.after(
        "lightning.pytorch.trainer.trainer",
        lambda module: _record_framework(planned, module.Trainer, "lightning"),
    )
    imports.after(
        "pytorch_lightning.trainer.trainer",
        lambda module: _record_framework(planned, module.Trainer, "lightning"),
    )
    imports.after(
        "accelerate.accelerator", lambda module: _record_framework(planned, module.Accelerator, "accelerate")
    )


def _record_framework(planned, kind, name):
    """Record that a library's loop trains."""
    original = kind.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        planned.framework = planned.framework or name
        original(self, *args, **kwargs)

    kind.__init__ = init


def _transformers(planned, kind):
    original = kind.train

    @functools.wraps(original)
    def train(self, *args, **kwargs):
        planned.framework = "transformers"
        try:
            _divide(planned, self)
        except Exception as error:
            planned.session.remark("trainer-kept", error)
        return original(self, *args, **kwargs)

    kind.train = train


def _divide(planned, trainer):
    batch, size = trainer._train_batch_size, planned.micro_batch
    if not size or planned.by_name or planned.accumulate > 1 or size >= batch or batch % size:
        return
    if planned.most and batch // size > MAX_PIECES:
        return
    settings = trainer.args
    trainer._train_batch_size = settings.per_device_train_batch_size = size
    settings.gradient_accumulation_steps *= batch // size
    # The library accumulates gradients itself, and all micro-batches run.
    planned.micro_batch, planned.whole_steps = None, True
    planned.facts.pieces = batch // size
    planned.session.remark("trainer-settings", size=size, accumulate=settings.gradient_accumulation_steps)
