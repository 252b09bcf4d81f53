"""The parallel part of a plan: the number of ranks for each kind of parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

# The degrees in the order of the mesh's dimensions, outermost first: ranks of one tensor-parallel group are
# neighbours, so that they share a machine.
DEGREES = ("pipeline", "replicate", "shard", "context", "tensor")

SCHEDULES = ("1f1b", "interleaved-1f1b")


def cut(samples: int, part: int, parts: int) -> tuple[int, int]:
    """Return the start and end of a part of a batch; both are equal if no sample is left for it."""
    return samples * part // parts, samples * (part + 1) // parts


class ParallelError(ValueError):
    """A parallel plan that cannot be read or applied; the message says why, and what to do."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(f"{why}\nhint: {hint}" if hint else why)
        self.why = why
        self.hint = hint


@dataclass(frozen=True)
class Parallel:
    """Degrees of parallelism of a training run. The number of ranks is their product."""

    replicate: int = 1
    """Copies of the model, each with its share of the batch (DDP; with `shard`, HSDP)."""
    shard: int = 1
    """Ranks that share parameters, gradients and optimizer state, each with a share of the batch (FSDP2)."""
    tensor: int = 1
    """Ranks that share the matrices of each layer, and see the same samples (DTensor)."""
    context: int = 1
    """Ranks that share each sequence."""
    pipeline: int = 1
    """Stages of consecutive layers."""
    schedule: str | None = None
    """The pipeline's schedule."""
    reshard_after_forward: bool = True
    """Free a block's gathered parameters after its forward pass, and gather them again for its backward
    pass.
    """
    offload: bool = False
    """Keep the shards and the optimizer's state in host memory."""

    def __post_init__(self) -> None:
        for name in DEGREES:
            degree = getattr(self, name)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise ParallelError(
                    f"`{name}` in [parallel] is {degree!r}, but has to be an integer of at least 1"
                )
        for name in ("reshard_after_forward", "offload"):
            if not isinstance(getattr(self, name), bool):
                raise ParallelError(
                    f"`{name}` in [parallel] is {getattr(self, name)!r}, but has to be true or false"
                )
        if self.schedule is not None and self.schedule not in SCHEDULES:
            known = ", ".join(f'"{name}"' for name in SCHEDULES)
            raise ParallelError(
                f"`schedule` in [parallel] is {self.schedule!r}, which is not a known schedule",
                f"the schedules are {known}",
            )
        if self.schedule is not None and self.pipeline == 1:
            raise ParallelError("`schedule` in [parallel] needs `pipeline` to be at least 2")
        if self.offload and self.shard == 1:
            raise ParallelError(
                "`offload` in [parallel] needs `shard` to be at least 2: only shards are offloaded",
                "the lever `host-optimizer-state` offloads the optimizer's state of a single GPU",
            )

    @property
    def world(self) -> int:
        """The number of ranks."""
        return math.prod(getattr(self, name) for name in DEGREES)

    @property
    def batches(self) -> int:
        """The number of parts that each global batch is divided into."""
        return self.replicate * self.shard

    def part_of(self, rank: int) -> int:
        """Return which part of each batch a rank trains on."""
        return rank // (self.context * self.tensor) % self.batches

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Parallel:
        """Read the table `[parallel]` of a plan file."""
        if not isinstance(table, Mapping):
            raise ParallelError(f"[parallel] must be a table, got {table!r}")
        known = [field.name for field in fields(cls)]
        unknown = [name for name in table if name not in known]
        if unknown:
            raise ParallelError(
                f"[parallel] has no field `{unknown[0]}`", f"its fields are {', '.join(known)}"
            )
        return cls(**{name: value for name, value in table.items() if value is not None})
