"""Measures if the micro-batches of a pipeline train like the whole batch.

A few samples go through the pipeline as one micro-batch, and then one at a time. Each rank compares the
gradients of its stages, and the last one the loss; what differs on any rank differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memfit._parallel.pipeline import Pipeline, Work

from .batches import Batch
from .comparing import Comparing, Draws
from .differences import Outcome, Verification, judge
from .faults import is_memory
from .tally import share_of
from .undoing import Undoing

# Number of samples that are compared.
_SAMPLES = 4
_NO_MEMORY = "memory ran out, so there is nothing to compare with"


class _NoMemory(Exception):  # noqa: N818
    """Memory ran out on a rank of the pipeline."""


class PipelineVerifier:
    """Compares batches with their micro-batches on all stages at once."""

    def __init__(
        self,
        model: nn.Module,
        pipeline: Pipeline,
        undoing: Undoing,
        forward: Callable[[Any], Any],
        part: Callable[[Batch, int, int], Any],
        count: Callable[[Any], Any] | None,
        draw: Callable[[str], None],
        precision: str | None,
    ) -> None:
        self._model = model
        self._pipeline = pipeline
        self._undoing = undoing
        self._forward = forward
        self._part = part
        self._count = count
        self._draw = draw
        self._precision = precision

    def verify(self, entry: Batch) -> Verification:
        """Compare some samples of a batch, on all ranks of the pipeline; fewer if memory runs out."""
        for items in dict.fromkeys((min(entry.items, _SAMPLES), 2)):
            found = self._compare(entry, items)
            if found.why != _NO_MEMORY:
                break
        return found

    def _compare(self, entry: Batch, items: int) -> Verification:
        name = {"bf16": "bfloat16", "fp16": "float16"}.get(
            self._precision or "", "the training's own precision"
        )
        ways = ((1,) * items,)
        # What each stage drew for all samples.
        draws = {stage: Draws(items) for stage in self._pipeline.stages.own}
        try:
            with self._undoing.undone():
                whole = self._run(entry, (items,), draws, None)
                parts = self._run(entry, ways[0], draws, whole.counts)
        except _NoMemory:
            return Verification(False, items, ways, name, why=_NO_MEMORY, failed=True)
        coarse = any(each.coarse for each in draws.values())
        found = judge(items, ways, name, whole, parts, coarse)
        known = [each for each in self._told(found) if each is not None]
        return max(known, key=lambda each: (not each.equal, each.difference or 0.0), default=found)

    def _told(self, mine: Any) -> list[Any]:
        """Return what each rank of the pipeline says."""
        told: list[Any] = [None] * self._pipeline.stages.ranks
        dist.all_gather_object(told, mine, group=self._pipeline.groups.side)
        return told

    def _agree(self, error: BaseException | None) -> None:
        """Raise an error on all ranks if one of them has one: its own, or that another one failed."""
        short = error is not None and is_memory(error, self._pipeline.device)
        mine = None if error is None else _NO_MEMORY if short else f"{type(error).__name__}: {error}"
        found = [each for each in self._told(mine) if each is not None]
        others = [each for each in found if each != _NO_MEMORY]
        if others:
            # The user's own error, or a stage that needs what another one has.
            raise (None if short else error) or RuntimeError(
                f"another rank of the pipeline failed: {others[0]}"
            )
        if found:
            raise _NoMemory

    def _run(
        self, entry: Batch, sizes: tuple[int, ...], draws: dict[int, Draws], counts: dict[str, float] | None
    ) -> Outcome:
        """Run the samples in micro-batches of these sizes, which are equal."""
        items, size = sum(sizes), sizes[0]
        losses: list[float] = []
        counted: dict[str, float] = {}

        def call(index: int, stage: int) -> Any:
            start = index * size
            part = self._part(entry, start, start + size)
            self._draw("comparison")
            samples = None if counts is None else (start, start + size, items)
            with Comparing(draws[stage], samples, False) as mode:
                returned = self._forward(part)
                mode.end_forward()
            return returned, part

        def loss(_index: int, returned: Any) -> torch.Tensor:
            value, part = returned
            number = self._count(part) if self._count is not None else float(size)
            share, own = share_of(value, number, counts)
            for name, count in own.items():
                counted[name] = counted.get(name, 0.0) + count
            losses.append(float(share.detach()))
            return share

        def traced(returned: Any) -> torch.Tensor:
            value = loss(0, returned).reshape(1)
            losses.clear()
            counted.clear()
            return value

        self._undoing.begin()
        try:
            kind = "comparison", entry.structure, entry.shape, size
            self._pipeline.run(
                Work(kind, len(sizes), call, loss, traced, contextlib.nullcontext, True,
                     lambda _place: None)
            )  # fmt: skip
            error, self._pipeline.failed = self._pipeline.failed, None
            self._agree(error)
            buffers = {name: each.detach().clone() for name, each in self._model.named_buffers()}
            return Outcome(self._undoing.gradients(), sum(losses), counted, buffers, {}, False)
        finally:
            self._undoing.end()
