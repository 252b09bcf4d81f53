"""Runs one stage of a pipeline with the model's own forward pass.

Every rank calls the model with the whole input of its samples. Blocks before the stage are skipped; at its
first block, the tensors that depend on parameters are replaced with those that the stage before has sent; at
the first block of the next stage, the forward pass is left with those that the next one needs. What the model
computes beside its blocks from its inputs alone (masks, positions, rotary tables) each rank computes itself.

A stage that needs anything else of another stage's would compute with NaN. Its first run is traced: autograd
records what depends on the parameters of other stages, and if any of it reaches the stage's results, the
pipeline is refused.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from .degrees import ParallelError
from .stages import Stages, is_inexact, nothing

# Attribute of a block: its gates, and its place among the blocks.
_GATE = "_memfit_gate"

Shape = tuple[torch.Size, torch.dtype]


class _Left(BaseException):
    """Leaves the forward pass at the next stage's first block. No handler of a model's own catches it."""

    def __init__(self, leaves: list[Any]) -> None:
        super().__init__()
        self.leaves = leaves


@dataclass
class Pattern:
    """What one stage receives and sends for one kind of micro-batch."""

    # The places of the tensors among a block's flattened arguments, and their shapes.
    received: list[int] = field(default_factory=list)
    inputs: list[Shape] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    outputs: list[Shape] = field(default_factory=list)
    # What a skipped block returns: its structure, and its leaves, of which tensors are given as shapes.
    skipped: tuple[TreeSpec, list[Any]] | None = None


@dataclass
class _Run:
    """A forward pass of a stage."""

    stage: int
    first: int
    end: int
    pattern: Pattern
    received: tuple[torch.Tensor, ...]
    # The first run of its kind: the pattern is being found.
    traced: bool
    device: torch.device
    # Called when the stage's own blocks begin.
    entered: Callable[[], None]
    # The block that the model has to call next.
    expected: int = 0
    # The elements of tensors without values, whose dependents are looked for.
    elements: list[tuple[torch.Tensor, str]] = field(default_factory=list)


class Gates:
    """The gates at a model's blocks."""

    def __init__(self, model: nn.Module, stages: Stages) -> None:
        self._stages = stages
        self._module = model
        self._model = type(model).__name__
        known = dict(model.named_modules())
        self._blocks = [known[name] for name in stages.blocks]
        self._kinds = [type(each) for each in self._blocks]
        self._run: _Run | None = None
        # What was received in the place of each tensor without values: a checkpointed block that the model
        # runs again in the backward pass gets the latter.
        self._replaced: Any = WeakTensorKeyDictionary()
        for index, each in enumerate(self._blocks):
            _install(each, self, index)

    def run(
        self, stage: int, pattern: Pattern, received: tuple[torch.Tensor, ...], call: Callable[[], Any],
        device: torch.device, entered: Callable[[], None],
    ) -> Any:  # fmt: skip
        """Run a stage: `call` calls the model, and `entered` is called before the stage's own blocks. Return
        the tensors that the next stage needs, or what `call` returns if this is the last stage.
        """
        first, end = self._stages.bounds[stage : stage + 2]
        return self._around(_Run(stage, first, end, pattern, received, False, device, entered), call)

    def trace(
        self, stage: int, call: Callable[[], Any], device: torch.device, outcome: Callable[[Any], torch.Tensor],
        *, reads: bool,
    ) -> Pattern:  # fmt: skip
        """Run a stage once without the others, to find out what it receives and sends. `outcome` returns the
        tensor in what `call` returns; with `reads`, its values are read.
        """
        pattern = Pattern()
        with self._stages_traced() as elements, torch.enable_grad():
            first, end = self._stages.bounds[stage : stage + 2]
            run = _Run(stage, first, end, pattern, (), True, device, lambda: None, elements=elements)
            returned = self._around(run, call)
            last = stage == self._stages.count - 1
            results = [outcome(returned)] if last else list(returned)
            self._refuse_dependents(stage, results, elements, reads)
        if last:
            pattern.outputs = [(torch.Size((1,)), results[0].dtype)]
        return pattern

    def _around(self, run: _Run, call: Callable[[], Any]) -> Any:
        self._run = run
        last = run.stage == self._stages.count - 1
        try:
            returned = call()
        except _Left as left:
            return self._sent(run, left.leaves)
        finally:
            self._run = None
        if not last or run.expected != len(self._blocks):
            raise ParallelError(
                f"the loss called {run.expected} of the {len(self._blocks)} blocks of {self._model}, but a pipeline "
                "needs all of them in each forward pass",
                "shard the model instead (`shard`)",
            )
        return returned

    # ----------------------------------------------------------------------------------- at a block's call

    def call(
        self, index: int, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Handle the call of a block."""
        run = self._run
        if run is None:
            return self._call_outside(index, real, args, kwargs)
        if index != run.expected:
            raise ParallelError(
                f"{self._model} calls `{self._stages.blocks[index]}` where a pipeline expects "
                f"{self._named(run.expected)}: it needs a model that calls its blocks once each, in order, and a "
                "loss that calls the model once",
                "shard the model instead (`shard`)",
            )
        run.expected += 1
        if index < run.first:
            return self._skip(run, index, args, kwargs)
        if index == run.first:
            if run.traced and not torch.is_grad_enabled():
                raise ParallelError(
                    f"`{self._stages.blocks[index]}` is called under `no_grad`, or in a checkpoint that runs it so: a "
                    "pipeline could not run backward through it",
                    "checkpoint the blocks with `use_reentrant=False`",
                )
            run.entered()
            if run.stage > 0:
                leaves, spec = tree_flatten((args, kwargs))
                self._receive(run, leaves)
                args, kwargs = tree_unflatten(leaves, spec)
        elif run.stage > 0:
            # The model may give the same tensor to each of its blocks.
            args, kwargs, _ = self._with_received(args, kwargs)
        if index == run.end:
            raise _Left(tree_flatten((args, kwargs))[0])
        return real(*args, **kwargs)

    def _with_received(self, args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
        """Return arguments with what was received in the place of tensors without values, and whether there
        were any.
        """
        leaves, spec = tree_flatten((args, kwargs))
        found = [self._replaced.get(each) if isinstance(each, torch.Tensor) else None for each in leaves]
        if all(each is None for each in found):
            return args, kwargs, False
        leaves = [each if new is None else new for each, new in zip(leaves, found, strict=True)]
        return *tree_unflatten(leaves, spec), True

    def _call_outside(
        self, index: int, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Handle the call of a block that runs again in the backward pass."""
        if self._stages.owner(self._stages.of_block(index)) != self._stages.rank:
            raise ParallelError(
                f"{self._model} was called outside of `memfit.Step`, but this rank has only its own stages of it",
                "load the checkpoint into a model of one process to evaluate it",
            )
        args, kwargs, found = self._with_received(args, kwargs)
        if not found and index > 0 and index in self._stages.bounds:
            raise ParallelError(
                f"`{self._stages.blocks[index]}` is called again with other tensors than before",
                "checkpoint the blocks with `use_reentrant=False`",
            )
        return real(*args, **kwargs)

    def _receive(self, run: _Run, leaves: list[Any]) -> None:
        """Replace what depends on parameters with what the stage before has sent."""
        if run.traced:
            run.pattern.received = _dependent(leaves)
            run.pattern.inputs = [_shape(leaves[place]) for place in run.pattern.received]
            run.received = tuple(_made_up(shape, dtype, run.device) for shape, dtype in run.pattern.inputs)
        for place, new in zip(run.pattern.received, run.received, strict=True):
            # A copy, because a block may write to what it gets, which autograd refuses for received tensors.
            own = new.clone()
            self._replaced[leaves[place]] = own
            leaves[place] = own

    def _sent(self, run: _Run, leaves: list[Any]) -> tuple[torch.Tensor, ...]:
        if run.traced:
            run.pattern.sent = _dependent(leaves)
            run.pattern.outputs = [_shape(leaves[place]) for place in run.pattern.sent]
        sent = tuple(leaves[place] for place in run.pattern.sent)
        found = [_shape(each) for each in sent]
        if found != run.pattern.outputs:
            raise ParallelError(
                f"micro-batches of one batch differ in shape ({found[0][0]} and {run.pattern.outputs[0][0]}), which "
                "a pipeline does not support",
                "pad the samples of a batch to one length",
            )
        # What does not need a gradient here is asked for one by the next stage.
        return tuple(
            each if each.requires_grad else each.detach().requires_grad_(is_inexact(each.dtype))
            for each in sent
        )

    # -------------------------------------------------------------------------------------- skipped blocks

    def _skip(self, run: _Run, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a block would, without its values."""
        pattern = run.pattern
        if pattern.skipped is None:
            pattern.skipped = self._outputs(run, index, args, kwargs)
        spec, leaves = pattern.skipped
        made = []
        for each in leaves:
            if isinstance(each, _Like):
                element = nothing(each.dtype, run.device, run.traced)
                if run.traced:
                    run.elements.append((element, self._stages.blocks[index]))
                # With memory of its own, since the model may write to it.
                each = element.expand(each.shape).clone()
            made.append(each)
        return tree_unflatten(made, spec)

    def _outputs(
        self, run: _Run, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[TreeSpec, list[Any]]:
        """Call a block of this stage in the place of another stage's, for the structure and the shapes of its
        result.
        """
        kind = self._kinds[index]
        own = next((place for place in range(run.first, run.end) if self._kinds[place] is kind), None)
        if own is None:
            raise ParallelError(
                f"`{self._stages.blocks[index]}` is {kind.__name__}, of which another stage has no block: memfit "
                "cannot tell what it returns",
                "use fewer stages, or shard the model instead (`shard`)",
            )
        # The call must not change what it is given, such as a cache of keys and values.
        leaves, spec = tree_flatten((args, kwargs))
        args, kwargs = tree_unflatten([_copied(each) for each in leaves], spec)
        try:
            with torch.no_grad():
                returned = kind.__call__(self._blocks[own], *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ParallelError(
                f"`{self._stages.blocks[index]}` and `{self._stages.blocks[own]}` are both {kind.__name__}, but the "
                f"second cannot run on what the first gets ({type(error).__name__}: {error}): memfit cannot tell what "
                "it returns",
                "use fewer stages, or shard the model instead (`shard`)",
            ) from error
        leaves, spec = tree_flatten(returned)
        return spec, [_Like(*_shape(each)) if isinstance(each, torch.Tensor) else each for each in leaves]

    # ------------------------------------------------------------------------------------------ tracing

    @contextlib.contextmanager
    def _stages_traced(self) -> Iterator[list[tuple[torch.Tensor, str]]]:
        """Return a context in which autograd records what depends on any parameter; the elements of those of
        other stages are yielded.
        """
        frozen = [
            each
            for each in self._module.parameters()
            if not each.requires_grad and each.is_leaf and is_inexact(each.dtype)
        ]
        elements = [(hole.fill(True), hole.name) for hole in self._stages.holes]
        for each in frozen:
            each.requires_grad_()
        try:
            yield elements
        finally:
            for each in frozen:
                each.requires_grad_(False)
            for hole in self._stages.holes:
                hole.fill(False)

    def _refuse_dependents(
        self, stage: int, results: list[torch.Tensor], elements: list[tuple[torch.Tensor, str]], reads: bool
    ) -> None:
        """Refuse a pipeline whose stage computes with what only another stage has."""
        names = {id(element): name for element, name in elements}
        needed = next(_reached(results, names), None)
        if needed is None and elements and reads:
            # Values may have been used where autograd does not record it.
            values = [each for each in results if is_inexact(each.dtype)]
            needed = elements[0][1] if any(bool(each.detach().isnan().any()) for each in values) else None
        if needed is not None:
            raise ParallelError(
                f"stage {stage + 1} of the pipeline needs `{needed}`, which another stage has, other than through the "
                "arguments of its first block",
                "pass it to the blocks as an argument, or shard the model instead (`shard`)",
            )

    def _named(self, index: int) -> str:
        return f"`{self._stages.blocks[index]}`" if index < len(self._blocks) else "no further block"


@dataclass(frozen=True)
class _Like:
    """A tensor of a skipped block's result."""

    shape: torch.Size
    dtype: torch.dtype


def _install(block: nn.Module, gates: Gates, index: int) -> None:
    """Let calls of a block go through its gate: outside of its hooks, and of a checkpoint in its class."""
    kind: type[Any] = type(block)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        gate = self.__dict__.get(_GATE)
        real = functools.partial(kind.__call__, self)
        return real(*args, **kwargs) if gate is None else gate[0].call(gate[1], real, args, kwargs)

    gated = type(
        kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__, "__doc__": kind.__doc__}
    )
    block.__class__ = gated
    block.__dict__[_GATE] = gates, index


def _dependent(leaves: list[Any]) -> list[int]:
    return [
        place for place, each in enumerate(leaves) if isinstance(each, torch.Tensor) and each.requires_grad
    ]


def _shape(tensor: torch.Tensor) -> Shape:
    return tensor.shape, tensor.dtype


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if value is None or isinstance(value, (nn.Module, str, int, float)):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _made_up(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of different values, none of which is special."""
    values = torch.arange(shape.numel(), device=device).remainder_(7).add_(1).view(shape)
    return (values.to(dtype) / 8).requires_grad_() if is_inexact(dtype) else values.to(dtype)


def _reached(results: list[torch.Tensor], names: dict[int, str]) -> Iterator[str]:
    """Yield the names of the leaves that tensors depend on, of those that have one."""
    nodes = [each.grad_fn for each in results if each.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            yield names[id(variable)]
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                nodes.append(after)
