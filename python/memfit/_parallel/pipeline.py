"""Runs micro-batches through the stages of a pipeline, with PyTorch's own schedules.

A rank whose stage fails goes on with the schedule, but computes nothing: the others would wait for what it
sends. Its error is raised when the schedule ends.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .degrees import Parallel, ParallelError
from .gates import Gates, Pattern, Shape
from .stages import Stages, cut_model, is_inexact, keep_own, own_in_groups

# Set on a model of which a rank has some stages.
_PIPELINE = "_memfit_pipeline"
# Number of schedules that are kept: batches may have many shapes, and some versions of PyTorch keep memory
# for each schedule's messages.
_MAX_SCHEDULES = 8


@dataclass(frozen=True)
class Work:
    """The micro-batches of one schedule, which have equally many samples, and how to run them."""

    # What distinguishes micro-batches whose tensors have other shapes.
    kind: Any
    count: int
    # Calls the model for a micro-batch and a stage, and returns what the loss function returned.
    call: Callable[[int, int], Any]
    # Returns the loss to run backward, given what `call` returned.
    loss: Callable[[int, Any], torch.Tensor]
    # The same for a run that is only traced: it counts nothing.
    traced: Callable[[Any], torch.Tensor]
    # Returns a context around a traced run, which undoes what it changes.
    undoing: Callable[[], Any]
    # The device computes values, so that a traced run's may be read.
    reads: bool
    # Called before a stage's own blocks in each micro-batch, with words that tell it from others.
    entered: Callable[[str], None]


class Pipeline:
    """This rank's part of a pipeline."""

    def __init__(self, model: nn.Module, stages: Stages, groups: Groups, device: torch.device) -> None:
        self.stages = stages
        self.groups = groups
        self.device = device
        self._gates = Gates(model, stages)
        self._patterns: dict[Any, dict[int, Pattern]] = {}
        self._schedules: dict[Any, tuple[Any, list[_Part]]] = {}
        # The first error of this rank in the micro-batches that run.
        self.failed: BaseException | None = None

    @property
    def is_last(self) -> bool:
        """`True` if this rank has the last stage, which computes the losses."""
        return self.stages.owner(self.stages.count - 1) == self.stages.rank

    @property
    def last(self) -> int:
        """The global rank that has the last stage."""
        return dist.get_global_rank(self.groups.pipeline, self.stages.owner(self.stages.count - 1))

    def shared(self, model: nn.Module) -> Iterator[tuple[list[torch.Tensor], tuple[int, ...]]]:
        """Yield the parameters that this rank shares with the same other ranks, and those ranks' places in
        the pipeline.
        """
        named = dict(model.named_parameters(remove_duplicate=False)) if self.stages.shared else {}
        found: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for names, ranks in self.stages.shared:
            if self.stages.rank in ranks:
                found.setdefault(ranks, []).append(next(named[name] for name in names if name in named))
        for ranks in sorted(found):
            yield found[ranks], ranks

    def divide(self, samples: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Divide samples into schedules of equally large micro-batches of at most `size` samples: yield the
        first sample, the number of micro-batches and their size.
        """
        start = 0
        for count, each in self._counts(samples, size):
            yield start, count, each
            start += count * each

    def _counts(self, samples: int, size: int) -> Iterator[tuple[int, int]]:
        count, rest = divmod(samples, size)
        if self.stages.interleaved and count > self.stages.ranks:
            # The interleaved schedule needs equally many micro-batches in each of its rounds.
            whole = count - count % self.stages.ranks
            yield whole, size
            count -= whole
        if count:
            yield count, size
        if rest:
            yield 1, rest

    def run(self, work: Work) -> None:
        """Run micro-batches forward and backward. An error is kept in `failed`."""
        patterns = self._patterns.get(work.kind)
        if patterns is None:
            patterns = self._patterns[work.kind] = self._trace(work)
        schedule, parts = self._schedule(work, patterns)
        for part in parts:
            part.work = work
        try:
            with _messages_kept():
                if self.is_last:
                    schedule.step(target=torch.arange(work.count))
                else:
                    schedule.step()
        finally:
            for part in parts:
                part.release()

    def _trace(self, work: Work) -> dict[int, Pattern]:
        """Find out what this rank's stages receive and send, and that it agrees with the other ranks."""
        found: dict[int, Pattern] = {}
        refused: BaseException | None = None
        try:
            for stage in self.stages.own:
                with work.undoing():
                    call = functools.partial(work.call, 0, stage)
                    found[stage] = self._gates.trace(stage, call, self.device, work.traced, reads=work.reads)
        except Exception as error:
            refused = error
        self._agree(found, refused)
        return found

    def _agree(self, found: dict[int, Pattern], refused: BaseException | None) -> None:
        """Raise an error on all ranks if one of them has one, or if a stage does not send what the next one
        receives.
        """
        told: list[Any] = [None] * self.stages.ranks
        mine = (
            {
                stage: ((each.received, each.inputs), (each.sent, each.outputs))
                for stage, each in found.items()
            },
            None if refused is None else f"{type(refused).__name__}: {refused}",
        )
        dist.all_gather_object(told, mine, group=self.groups.side)
        if refused is not None:
            raise refused
        known: dict[int, Any] = {}
        for each in told:
            patterns, error = each or ({}, None)
            known |= patterns
            if error is not None:
                raise RuntimeError(f"another rank of the pipeline failed: {error}")
        for stage in range(1, self.stages.count):
            if stage in known and stage - 1 in known and known[stage][0] != known[stage - 1][1]:
                raise RuntimeError(
                    f"stage {stage} of the pipeline sends {known[stage - 1][1]}, but the next one expects "
                    f"{known[stage][0]}\n"
                    "hint: the blocks before and after change the shape of what they get: use fewer stages, or "
                    "shard the model instead (`shard`)"
                )

    def _schedule(self, work: Work, patterns: dict[int, Pattern]) -> tuple[Any, list[_Part]]:
        key = work.kind, work.count
        if key not in self._schedules:
            if len(self._schedules) == _MAX_SCHEDULES:
                # All ranks drop the same one: they have made them in one order.
                del self._schedules[next(iter(self._schedules))]
            parts = [
                _Part(self, self._gates, stage, patterns[stage], self.device) for stage in self.stages.own
            ]
            made = [self._stage(part) for part in parts]
            self._schedules[key] = _schedule_of(made, work.count, self.stages), parts
        return self._schedules[key]

    def _stage(self, part: _Part) -> Any:
        pattern = part.pattern
        return _stage_class()(
            part, part.stage, self.stages.count, self.device, group=self.groups.pipeline,
            input_args=_like(pattern.inputs), output_args=_like(pattern.outputs),
        )  # fmt: skip


class _Part(nn.Module):
    """One stage, as PyTorch's schedules call it. It has no parameters, so that they change none."""

    def __init__(
        self, pipeline: Pipeline, gates: Gates, stage: int, pattern: Pattern, device: torch.device
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.gates = gates
        self.stage = stage
        self.pattern = pattern
        self.device = device
        self.work: Work | None = None
        # The micro-batch that runs.
        self.index = 0

    def forward(self, *received: torch.Tensor) -> Any:
        """Run the micro-batch."""
        if self.pipeline.failed is None:
            try:
                return self._run(received)
            except torch.OutOfMemoryError as error:
                # The traceback would keep the memory of the micro-batch.
                self.pipeline.failed = error.with_traceback(None)
            except Exception as error:
                self.pipeline.failed = error
        returned = _Idle.apply(self.pattern.outputs, self.device, *received)
        return returned[0] if self._is_last else returned

    def _run(self, received: tuple[torch.Tensor, ...]) -> Any:
        assert self.work is not None
        work, index = self.work, self.index
        returned = self.gates.run(
            self.stage, self.pattern, received, lambda: work.call(index, self.stage), self.device,
            lambda: work.entered(f"{index} {self.stage}"),
        )  # fmt: skip
        if self._is_last:
            return torch.stack([work.loss(index, returned)])
        return tuple(each.contiguous() for each in returned)

    @property
    def _is_last(self) -> bool:
        return self.stage == self.pipeline.stages.count - 1

    def release(self) -> None:
        """Drop the batch."""
        self.work = None


class _Idle(torch.autograd.Function):
    """Stands in for a stage that failed: its results and gradients are zero."""

    @staticmethod
    def forward(ctx: Any, shapes: list[Shape], device: torch.device, *received: torch.Tensor) -> Any:
        ctx.inputs = [(each.shape, each.dtype) for each in received]
        ctx.device = device
        made = tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes)
        if not received:
            made = tuple(each.requires_grad_() for each in made)
        return made

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        zeros = [torch.zeros(shape, dtype=dtype, device=ctx.device) for shape, dtype in ctx.inputs]
        return None, None, *zeros


def _stage_class() -> Any:
    """Return PyTorch's stage, with another end for micro-batches that fail in their backward pass."""
    from torch.distributed.pipelining import PipelineStage

    class Stage(PipelineStage):  # type: ignore[misc]
        def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.submod.index = fwd_chunk_id
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

        def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            part = self.submod
            try:
                super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            except Exception as error:
                # PyTorch raises another error with a description of the stage.
                part.pipeline.failed = part.pipeline.failed or error.__cause__ or error
                self.bwd_cache[bwd_chunk_id] = (None,) * len(part.pattern.inputs)
            if not self.is_first:
                self.bwd_cache[bwd_chunk_id] = tuple(
                    torch.zeros(shape, dtype=dtype, device=self.device) if each is None else each
                    for each, (shape, dtype) in zip(
                        self.bwd_cache[bwd_chunk_id], part.pattern.inputs, strict=True
                    )
                )

    return Stage


def _schedule_of(made: list[Any], count: int, stages: Stages) -> Any:
    from torch.distributed import pipelining

    if stages.interleaved:
        kind, first = pipelining.ScheduleInterleaved1F1B, made
    else:
        # With fewer micro-batches than stages, no micro-batch ends before the last one begins.
        few = count < stages.count
        kind, first = (pipelining.ScheduleGPipe if few else pipelining.Schedule1F1B), made[0]
    settings: dict[str, Any] = {"n_microbatches": count, "loss_fn": lambda output, _target: output.sum()}
    if "scale_grads" in inspect.signature(kind).parameters:
        settings["scale_grads"] = False
    return kind(first, **settings)


@contextlib.contextmanager
def _messages_kept() -> Iterator[None]:
    """Return a context that holds the messages between ranks until it ends. PyTorch 2.6 waits for the last of
    several and drops the others, which cancels them with gloo.
    """
    send = dist.batch_isend_irecv
    kept: list[Any] = []

    def sent(*args: Any, **kwargs: Any) -> Any:
        works = send(*args, **kwargs)
        kept.extend(works)
        return works

    dist.batch_isend_irecv = sent
    try:
        yield
    finally:
        dist.batch_isend_irecv = send


def _like(shapes: list[Shape]) -> tuple[torch.Tensor, ...]:
    """Return tensors of these shapes without memory. Those that have a gradient are exchanged with one."""
    made = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
    return tuple(each.requires_grad_(is_inexact(each.dtype)) for each in made)


@dataclass(frozen=True)
class Groups:
    """The process groups of a pipeline's ranks."""

    # The ranks of the pipeline, on the device and on the host.
    pipeline: Any
    side: Any
    # The ranks that have the same stages, with other samples; `None` without replicas.
    replicas: Any
    replicas_side: Any
    # The ranks that share parameters, by their places in the pipeline, on the device and on the host.
    sharing: dict[tuple[int, ...], tuple[Any, Any]]


def build(
    model: nn.Module,
    parallel: Parallel,
    optimizers: Iterable[torch.optim.Optimizer],
    mesh: Any,
    device: torch.device,
) -> nn.Module:
    """Keep this rank's stages of a model, and return it."""
    for each in model.modules():
        if isinstance(each, nn.SyncBatchNorm):
            raise ParallelError(
                "SyncBatchNorm waits for ranks of a pipeline that have other layers", "use GroupNorm"
            )
        if hasattr(each, "_orig_mod"):
            raise ParallelError(
                "a pipeline cannot be cut out of a compiled model", "compile its blocks, not the model"
            )
    stages = cut_model(model, parallel, mesh.get_local_rank("pipeline"))
    before = list(model.parameters())
    keep_own(model, stages)
    own_in_groups(optimizers, before, model)
    groups = _make_groups(stages, parallel, mesh)
    model.__dict__[_PIPELINE] = Pipeline(model, stages, groups, device)
    return model


def pipeline_of(model: nn.Module) -> Pipeline | None:
    """Return the pipeline that a model's stages belong to."""
    return model.__dict__.get(_PIPELINE)


def _make_groups(stages: Stages, parallel: Parallel, mesh: Any) -> Groups:
    """Create the groups: all ranks create all of them, in one order."""
    inner = parallel.world // stages.ranks
    pipelines = [tuple(range(first, parallel.world, inner)) for first in range(inner)]
    replicas = [tuple(range(first, first + inner)) for first in range(0, parallel.world, inner)]
    sets = sorted({ranks for _, ranks in stages.shared if len(ranks) < stages.ranks})
    pipeline, side = mesh["pipeline"].get_group(), _own_group(pipelines, "gloo")
    sharing = {tuple(range(stages.ranks)): (pipeline, side)}
    for ranks in sets:
        some = [tuple(each[place] for place in ranks) for each in pipelines]
        sharing[ranks] = _own_group(some, None), _own_group(some, "gloo")
    return Groups(
        pipeline,
        side,
        mesh["replicate"].get_group() if inner > 1 else None,
        _own_group(replicas, "gloo") if inner > 1 else None,
        sharing,
    )


def _own_group(groups: list[tuple[int, ...]], backend: str | None) -> Any:
    """Create groups, and return the one that this rank is in."""
    return dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups], backend=backend)[0]
