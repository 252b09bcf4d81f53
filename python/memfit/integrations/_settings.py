"""Settings that all integrations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit._train.plans import PRECISION_LEVERS, levers_of, parallel_of, read_plan

# Levers that change the data loader, which the trainer builds.
LOADER_LEVERS = ("length-buckets", "loader-workers")


@dataclass(frozen=True)
class Settings:
    """Settings of micro-batches under a trainer, with the names and meanings of `memfit.Step`'s arguments."""

    plan: Any = None
    levers: Mapping[str, Any] | None = None
    micro_batch: int | None = None
    """Largest micro-batch; without it, batches are split only if they do not fit."""
    allow: str | None = None
    """`"changes-training"` splits batches even if that changes training results."""
    count: Callable[[Any], float] | None = None
    """The number of tokens (say) of a batch over which its loss is a mean; samples by default."""
    batch_size: Callable[[Any], int] | None = None
    split: Callable[[Any, int, int], Any] | None = None
    modules: Sequence[Any] = ()
    state: Sequence[Any] = ()
    noise_scale: bool = False
    """Measure the gradient noise scale."""

    def gradient_arguments(
        self, precision: str | None, device: torch.device
    ) -> tuple[dict[str, Any], list[str]]:
        """Return keyword arguments for `Gradients`, and the plan's settings that the trainer has to apply.

        `precision` is the trainer's, `None` for fp32: an autocast lever of the plan must match it. `device`
        is the device that the trainer trains on.
        """
        read = read_plan(self.plan, device)
        refuse_parallel(read)
        levers = levers_of(read, self.levers)
        not_applied = [
            f"`{name}`: it is for the loader" for name in LOADER_LEVERS if levers.pop(name, None) is not None
        ]
        for lever, name in PRECISION_LEVERS.items():
            if levers.pop(lever, None) is not None and precision != name:
                raise ValueError(
                    f"the plan has `{lever}`, but the trainer computes in {precision or 'fp32'}\n"
                    f"hint: set the trainer's own precision to {name}"
                )
        micro_batch = self.micro_batch if self.micro_batch is not None else read.get("micro_batch")
        micro_batch = micro_batch if micro_batch is not None else levers.pop("micro-batch", None)
        levers.pop("micro-batch", None)
        arguments = {
            "levers": levers,
            "micro_batch": micro_batch,
            "allow": self.allow,
            "count": self.count,
            "batch_size": self.batch_size,
            "split": self.split,
            "modules": self.modules,
            "state": self.state,
            "noise_scale": self.noise_scale,
        }
        return arguments, not_applied


def refuse_parallel(plan: Mapping[str, Any]) -> None:
    """Refuse a plan for several processes."""
    parallel = parallel_of(plan)
    if parallel is not None:
        raise ValueError(
            f"the plan is for {parallel.world} processes, and memfit's integrations run in one\n"
            "hint: use `memfit.Step`, which applies `[parallel]`, or make a plan for one GPU"
        )
