"""Configures library trainers through their own settings, so that their counts, logs and averages stay
correct.

The Trainer of transformers averages over the tokens of all batches of a step, and its schedule counts steps.
So a plan's micro-batch size becomes the Trainer's own batch size, and its accumulation steps rise. If the
sizes do not divide evenly, or only some micro-batches run, the batch is divided from outside instead.

If the library distributes the training over several GPUs, the Trainer's batch size also becomes this rank's
share. Lightning has no environment variables for that: its Trainer gets the arguments.
"""

import functools
import importlib
import os

from . import imports

# Upper limit on accumulation steps if the plan runs only part of a step.
MAX_PIECES = 8


def arm(planned):
    imports.after("transformers.trainer", lambda module: _transformers(planned, module.Trainer))
    imports.after(
        "lightning.pytorch.trainer.trainer",
        lambda module: _lightning(planned, module.Trainer, "lightning.pytorch"),
    )
    imports.after(
        "pytorch_lightning.trainer.trainer",
        lambda module: _lightning(planned, module.Trainer, "pytorch_lightning"),
    )
    imports.after(
        "accelerate.accelerator", lambda module: _record_framework(planned, module.Accelerator, "accelerate")
    )


def _record_framework(planned, kind, name, settings=None):
    """Record that a library's loop trains. `settings` returns the arguments that distribute it as planned."""
    original = kind.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        planned.framework = planned.framework or name
        if settings is not None and planned.library is not None:
            kwargs.update(settings(planned.library))
        original(self, *args, **kwargs)

    kind.__init__ = init


def _lightning(planned, kind, package):
    _record_framework(planned, kind, "lightning", lambda library: _distributed(library, package))


def _distributed(library, package):
    """Return the arguments with which Lightning's Trainer distributes a training as planned."""
    settings = {
        "accelerator": "gpu",
        "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
        "num_nodes": int(os.environ["GROUP_WORLD_SIZE"]),
        "strategy": "ddp",
    }
    if library.shards:
        strategies = importlib.import_module(f"{package}.strategies")

        def wraps(module, recurse, **_):
            return recurse or type(module).__name__ in library.blocks

        settings["strategy"] = strategies.FSDPStrategy(
            auto_wrap_policy=wraps, sharding_strategy="FULL_SHARD" if library.reshards else "SHARD_GRAD_OP"
        )
    return settings


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
    batches = getattr(kind, "get_batch_samples", None)
    if batches is None:
        return

    @functools.wraps(batches)
    def get_batch_samples(self, *args, **kwargs):
        samples, count = batches(self, *args, **kwargs)
        if isinstance(count, planned.session.torch.Tensor):
            planned.facts.division.counted(count)
        return samples, count

    kind.get_batch_samples = get_batch_samples


def _divide(planned, trainer):
    library = planned.library
    if library is not None and planned.batch and planned.batch % library.ranks == 0:
        # Without several processes, the Trainer's batch is for all GPUs (DataParallel).
        trainer._train_batch_size = trainer.args.per_device_train_batch_size = planned.batch // library.ranks
        library.has_own_share = True
    batch, size = trainer._train_batch_size, planned.micro_batch
    if not size or planned.by_name or planned.accumulate > 1 or size >= batch or batch % size:
        return
    if planned.most and batch // size > MAX_PIECES:
        return
    settings = trainer.args
    trainer._train_batch_size = settings.per_device_train_batch_size = size
    settings.gradient_accumulation_steps *= batch // size
    if library is not None and library.shards:
        # Otherwise, FSDP2 would keep whole gradients until the last micro-batch.
        trainer.accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
    # The library accumulates gradients itself, and all micro-batches run.
    planned.micro_batch, planned.whole_steps = None, True
    planned.facts.pieces = batch // size
    planned.session.remark("trainer-settings", size=size, accumulate=settings.gradient_accumulation_steps)
