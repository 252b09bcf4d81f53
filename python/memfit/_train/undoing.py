"""Runs a comparison without side effects on gradients, buffers, random numbers and other state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .batches import visit
from .buffers import Buffers
from .device import local
from .graph import leaves
from .outside import Outside
from .parameters import Parameters
from .randomness import RandomState


class Undoing:
    """The state that a comparison changes, saved to be restored."""

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[nn.Module],
        parameters: Parameters,
        outside: Outside,
        device: torch.device,
    ) -> None:
        self._model = model
        self._modules = [model, *modules]
        self._parameters = parameters
        self._outside = outside
        self._device = device
        self._trained: set[int] = set()
        self._reached: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._buffers: list[Buffers] = []
        self.numbers = RandomState([device])

    def set_aside(self, value: torch.Tensor) -> None:
        """Save and clear the gradients of other tensors that a backward pass reaches: another model's, a
        criterion's.
        """
        for leaf in leaves(value):
            if id(leaf) not in self._trained and id(leaf) not in self._reached:
                self._reached[id(leaf)] = leaf, leaf.grad
                leaf.grad = None

    def known(self, part: Any) -> Iterator[torch.Tensor]:
        """Yield memory that is restored anyway: gradients, buffers, and the micro-batch itself."""
        reached = [leaf for leaf, _ in self._reached.values()]
        yield from (each.grad for each in (*self._parameters.all, *reached) if each.grad is not None)
        yield from self._model.buffers()
        found: list[torch.Tensor] = []
        visit(part, found.append)
        yield from found

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return copies of the trained parameters' gradients by name."""
        return {
            name: local(parameter.grad.detach()).clone()
            for name, parameter in self._parameters.named()
            if parameter.grad is not None
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of buffers and of state outside the model by name."""
        found = {
            name: buffer.detach().clone()
            for name, buffer in self._model.named_buffers()
            if not _is_special(buffer)
        }
        return {**found, **self._outside.tensors()}

    def restore_buffers(self) -> None:
        """Restore the buffers at the start of the run."""
        for one in self._buffers:
            one.restore()

    def begin(self) -> None:
        """Start a run."""
        for one in self._buffers:
            one.keep()
        self._outside.keep(everything=True)
        self.drop_gradients()

    def end(self) -> None:
        """End a run and restore all state."""
        self.restore_buffers()
        self._outside.restore()
        self.numbers.restore()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Drop the gradients of a run."""
        for parameter in self._parameters.all:
            parameter.grad = None
        for leaf, _ in self._reached.values():
            leaf.grad = None

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Restore gradients, buffers, random numbers and all other state afterwards."""
        kept = [parameter.grad for parameter in self._parameters.all]
        self._trained = {id(parameter) for parameter in self._parameters.all}
        self._reached.clear()
        self._buffers = [Buffers(module) for module in self._modules]
        self.numbers = RandomState([self._device])
        buffers = [buffer for module in self._modules for buffer in module.buffers()]
        with _version_kept([*buffers, *self._outside.written()]), self._outside.aside():
            try:
                with _eagerly():
                    yield
            finally:
                self.end()
                for parameter, gradient in zip(self._parameters.all, kept, strict=True):
                    parameter.grad = gradient
                for leaf, gradient in self._reached.values():
                    leaf.grad = gradient


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Run compiled code eagerly, so that the comparison sees each operation."""
    stance = getattr(torch.compiler, "set_stance", None)
    with stance("force_eager") if stance is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _version_kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore the version counters of tensors whose values are restored. A micro-batch may wait for its
    backward pass, which refuses tensors that were written to since the forward pass, such as the statistics
    of batch normalisation.
    """
    with contextlib.ExitStack() as stack:
        for tensor in tensors:
            if not tensor.is_inference():
                stack.enter_context(torch.autograd._unsafe_preserve_version_counter(tensor))
        yield


def _is_special(buffer: torch.Tensor) -> bool:
    return buffer.layout is not torch.strided or type(buffer) is not torch.Tensor
