"""Ranks that each have some stages of a model, and run the micro-batches of a batch as a pipeline.

The schedule (1F1B, or interleaved) is PyTorch's. A turn of the controller, usually the whole batch, is
divided into micro-batches for it. Losses are known on the last stage, which sends them to the others.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from memfit._parallel.pipeline import Pipeline, Work, pipeline_of

from .batches import Batch
from .device import computes
from .differences import Verification
from .parameters import Parameters
from .part import Runner
from .pipelined_verifying import PipelineVerifier
from .randomness import RandomState
from .ranks import ReplicatedRanks, SingleRank
from .shares import Share
from .snapshot import Snapshot
from .tally import Tally, scalar, split_metrics
from .undoing import Undoing

# Micro-batches of a batch for each stage, if the plan does not set their size: a rank then idles for about a
# fifth of a step. More of them are smaller, and so less efficient.
_PER_STAGE = 4


class Pipelined(ReplicatedRanks):
    """Ranks that each have some stages of the model."""

    def __init__(self, model: nn.Module, pipeline: Pipeline, group: Any, timeout: float) -> None:
        super().__init__(group, timeout, False, model)
        self.inside = self.alike = self.pipes = True
        self.pipeline = pipeline
        self._model = model

    def correction(self, factor: float) -> float:
        # The stages' ranks all count the same samples.
        return factor * self.pipeline.stages.ranks

    def watching(self, inside: bool = True) -> contextlib.AbstractContextManager[None]:
        # No rank leaves the others in the middle of a schedule, and a message between two ranks must not be
        # waited for in short intervals: gloo closes the connection when the time is over.
        return contextlib.nullcontext() if inside else super().watching(inside)

    def failed(self, batch: int, size: int) -> None:
        # This rank went on with its schedule, so that the others did not wait.
        self._failed = batch, size

    def reduce(self, parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> None:  # noqa: ARG002
        trained = [each for each in parameters if each.requires_grad]
        groups = self.pipeline.groups
        for some, ranks in self._shared(trained):
            self._add_up([each for each in some if each.requires_grad], *groups.sharing[ranks])
        if groups.replicas is not None:
            self._add_up(trained, groups.replicas, groups.replicas_side)

    def _shared(
        self, parameters: Iterable[torch.Tensor]
    ) -> Iterator[tuple[list[torch.Tensor], tuple[int, ...]]]:
        """Yield the parameters that this rank shares with the same other ranks: also those outside of the
        model, which only the last stage's loss uses.
        """
        everyone = tuple(range(self.pipeline.stages.ranks))
        inside = set(self._model.parameters())
        outside = [each for each in parameters if each not in inside]
        for some, ranks in self.pipeline.shared(self._model):
            yield ([*some, *outside], ranks) if ranks == everyone else (some, ranks)
            outside = [] if ranks == everyone else outside
        if outside:
            yield outside, everyone

    def clip(self, parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
        parameters = [each for each in parameters if each.grad is not None]
        # What several ranks have counts on the first of them.
        rank = self.pipeline.stages.rank
        others = {each for some, ranks in self._shared(parameters) for each in some if ranks[0] != rank}
        counted = [each for each in parameters if each not in others]
        square = torch.zeros((), dtype=torch.float64, device=self.pipeline.device)
        if counted:
            square += nn.utils.get_total_norm([each.grad for each in counted]).to(square) ** 2
        dist.all_reduce(square, group=self.pipeline.groups.pipeline)
        norm = square.sqrt()
        if parameters:
            kind = torch.float64 if any(each.dtype == torch.float64 for each in parameters) else torch.float32
            norm = norm.to(kind)
            nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm


class _Recorded(Tally):
    """What a turn's micro-batches add to their batch's tally, on the last stage."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        # The counts of the micro-batches.
        self.counts: list[float] = []
        # Name, divisor and count of each loss, and its share of the window's loss.
        self.losses: list[tuple[str, float, float]] = []
        self.shares: list[torch.Tensor] = []
        self.told: list[tuple[int, Mapping[str, Any]]] = []

    def add(self, name: str, share: torch.Tensor, back: float, count: float) -> None:
        self.losses.append((name, back, count))
        self.shares.append(share)

    def add_metrics(self, samples: int, metrics: Mapping[str, Any]) -> None:
        self.told.append((samples, metrics))


class PipelinedRunner(Runner):
    """Runs a turn's samples through the pipeline."""

    def __init__(self, pipeline: Pipeline, *args: Any) -> None:
        super().__init__(*args)
        self._pipeline = pipeline
        self._device = pipeline.device
        self._turns = 0
        # What comparisons found, for each kind of batch.
        self._found: dict[Any, Verification] = {}

    def follow(
        self,
        size: int | None,
        shared: Share | None,
        undoing: Undoing,
        snapshot: Snapshot,
        parameters: Parameters,
    ) -> None:
        """Run micro-batches of `size` samples, draw random numbers from the ranks' common seed, undo traced
        forward passes with `undoing`, and let `snapshot` watch the first forward pass.
        """
        self._size = size
        self._snapshot = snapshot
        self._parameters = parameters
        # A step without a plan, on a model that another one has cut, gets one seed for all ranks as well.
        drawn = [shared.seed if shared is not None else torch.initial_seed()]
        pipeline = self._pipeline
        dist.broadcast_object_list(drawn, pipeline.last, group=pipeline.groups.side)
        self._seed = f"{drawn[0]} {shared.index if shared is not None else 0}"
        self._undoing = undoing
        self._verifier = PipelineVerifier(
            self._model, self._pipeline, undoing, self._forward, self._part, self._count, self._draw,
            self._precision.name,
        )  # fmt: skip

    def run(
        self, entry: Batch, start: int, stop: int, tally: Tally, *, opens: float = 0.0, idle: bool = False
    ) -> None:
        pipeline = self._pipeline
        size = self._micro_batch(entry, stop - start)
        if size < entry.items and not idle:
            tally.changed += self._divided(entry, size)
        recorded = _Recorded(self._device)
        self._turns += 1
        with self._numbers_kept():
            for first, count, each in pipeline.divide(stop - start, size):
                begin = start + first
                bounds = [(begin + index * each, begin + (index + 1) * each) for index in range(count)]
                pipeline.run(self._work(entry, bounds, recorded, opens, idle))
        self._send_losses(recorded, stop - start, tally)
        error, pipeline.failed = pipeline.failed, None
        if error is not None:
            raise error

    def _divided(self, entry: Batch, size: int) -> tuple[str, ...]:
        """Check that a batch may be divided, once for each kind of batch, and return what that changes."""
        key = entry.structure, self._model.training
        if computes() and key not in self._found:
            self._found[key] = self._verifier.verify(entry)
        return self._division.require_as(entry, size, self._found.get(key))

    def _micro_batch(self, entry: Batch, samples: int) -> int:
        """Return the size of the micro-batches of a turn: a turn that has fewer samples, because memory ran
        out, has equally many of them.
        """
        size = self._size or -(-entry.items // (_PER_STAGE * self._pipeline.stages.ranks))
        return max(1, -(-size * samples // entry.items))

    def _work(
        self, entry: Batch, bounds: list[tuple[int, int]], recorded: _Recorded, opens: float, idle: bool
    ) -> Work:
        def call(index: int, _stage: int) -> Any:
            part = self._part(entry, *bounds[index])
            self._draw(f"{bounds[index]}")
            with self._watching(entry):
                return self._forward(part), part

        def loss(index: int, returned: Any) -> torch.Tensor:
            value, part = returned
            begin, end = bounds[index]
            is_void = idle or entry.void
            share, main = self._loss_and_count(
                entry, value, part, end - begin, recorded, opens if begin == 0 else 0.0, is_void
            )
            recorded.counts.append(0.0 if is_void else main)
            return share * 0.0 if is_void else share

        first = entry.part(*bounds[0], None)
        shapes = tuple(
            (each.shape, each.dtype) if isinstance(each, torch.Tensor) else None
            for each in tree_leaves(first)
        )
        kind = shapes, self._model.training, torch.is_autocast_enabled()
        return Work(
            kind, len(bounds), call, loss, _first_loss, self._undone, computes(),
            lambda place: self._draw(f"{bounds[0]} {place}"),
        )  # fmt: skip

    def _watching(self, entry: Batch) -> contextlib.AbstractContextManager[Any]:
        if not self._snapshot.watches:
            return contextlib.nullcontext()
        return self._snapshot.watching(entry, self._parameters)

    # ----------------------------------------------------------------------------------- random numbers

    def _draw(self, place: str) -> None:
        """Seed all generators for a micro-batch, or for a stage of it. Ranks draw the same numbers for what
        each of them computes: the noise that a loss function adds to its batch, or a mask. Blocks of
        different stages draw different ones.
        """
        seed = zlib.crc32(f"{self._seed} {self._controller.windows} {self._turns} {place}".encode())
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index or 0].manual_seed(seed)
        random.seed(seed)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed)

    @contextlib.contextmanager
    def _numbers_kept(self) -> Iterator[None]:
        kept = RandomState([self._device])
        try:
            yield
        finally:
            kept.restore()

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Undo what a traced forward pass changes."""
        if not computes():
            with self._numbers_kept():
                yield
            return
        with self._undoing.undone():
            self._undoing.begin()
            yield

    # ------------------------------------------------------------------------------------------- losses

    def _send_losses(self, recorded: _Recorded, samples: int, tally: Tally) -> None:
        """Add a turn's losses to its batch's tally on all ranks of the pipeline."""
        pipeline = self._pipeline
        if not pipeline.is_last:
            # What a rank without the others expects: a mean over samples.
            recorded.losses, recorded.counts = (
                [("", self._controller.divisor, float(samples))],
                [float(samples)],
            )
        metrics = [
            (size, {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in some.items()})
            for size, some in recorded.told
        ]  # fmt: skip
        told: list[Any] = [
            recorded.losses,
            recorded.counts,
            metrics,
            self.losses.state(),
            pipeline.failed is None,
        ]
        dist.broadcast_object_list(told, pipeline.last, group=pipeline.groups.side)
        losses, counts, metrics, state, went_well = told
        if not went_well:
            return
        if recorded.shares:
            shares = torch.stack([each.detach().to(torch.float64) for each in recorded.shares])
        else:
            shares = torch.zeros(len(losses), dtype=torch.float64, device=self._device)
        dist.broadcast(shares, pipeline.last, group=pipeline.groups.pipeline)
        for (name, back, count), share in zip(losses, shares.unbind(), strict=True):
            tally.add(name, share, back, count)
        for size, some in metrics:
            tally.add_metrics(size, some)
        if not pipeline.is_last:
            self.losses.counts, self.losses.divisors = state["counts"], state["divisors"]
        for count in counts:
            self._controller.count(count)
        tally.parts += len([count for count in counts if count])


def _first_loss(returned: Any) -> torch.Tensor:
    """Return the loss in what a micro-batch returned."""
    value = split_metrics(returned[0])[0]
    while isinstance(value, (Mapping, tuple, list)):
        value = next(iter(value.values())) if isinstance(value, Mapping) else value[0]
    return scalar(value).reshape(1)


def pipelined(model: nn.Module, group: Any, timeout: float) -> Pipelined | None:
    """Return the ranks of a model that is one rank's part of a pipeline; `None` for another model."""
    pipeline = pipeline_of(model)
    return None if pipeline is None else Pipelined(model, pipeline, group, timeout)


def runner_of(ranks: SingleRank) -> Callable[..., Runner]:
    """Return what makes the runner of these ranks."""
    return functools.partial(PipelinedRunner, ranks.pipeline) if isinstance(ranks, Pipelined) else Runner
