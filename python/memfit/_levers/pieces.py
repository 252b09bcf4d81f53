"""Runs an optimizer's step on a few parameters at a time, within the optimizer itself.

Several levers need this, to update a parameter as soon as its gradient is computed, or to unpack the state of
only a few parameters during their update. The optimizer stays the same object with the same step; the step is
only called more often, with fewer parameters in its groups.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from .alone import of_torch, plain_step, why_together
from .held import Held, Packing, flattened, is_flat
from .target import CannotApply, Undo

_NAME = "_memfit_pieces"
# Attribute of an optimizer with a function that is called instead of its step and decides whether to run it.
GATE = "_memfit_gate"
# Number of elements that are updated at once, and above which one parameter is split.
MAX_ELEMENTS = 1 << 24
# Optimizers that update each element independently of all others: only their parameters can be split.
ELEMENTWISE = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "ASGD",
)


class UpdatesBetweenSteps(Protocol):
    """Updates parameters before the optimizer's step is called; receives the start and end of each step."""

    def begin(self) -> None:
        """Start a step, for which no parameter is updated yet."""
        ...

    def end(self) -> None:
        """End a step, to which all updates since the last one belong."""
        ...


@dataclass
class _Unit:
    """A parameter that is updated, or a piece of one."""

    parameter: nn.Parameter
    start: int
    stop: int
    tensor: nn.Parameter

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.parameter.numel()


class Pieces:
    """Updates one optimizer's parameters piece by piece."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.packing: Packing | None = None
        # If set, bf16 weights are updated in fp32 and rounded with this function.
        self.rounding: Callable[[torch.Tensor], torch.Tensor] | None = None
        # Updates parameters between steps, if a lever does so.
        self.between_steps: UpdatesBetweenSteps | None = None
        self._counters: dict[tuple[nn.Parameter, str], torch.Tensor] = {}
        # Class of the optimizer before its step was replaced.
        self.kind = type(optimizer)
        # The step without the optimizer's hooks, which run once around all pieces.
        self.plain = plain_step(type(optimizer))
        self.elementwise = of_torch(type(optimizer)) in ELEMENTWISE
        # Autograd has a thread per device, but the groups are shared.
        self._lock = threading.RLock()

    def run(self, parameters: Iterable[nn.Parameter]) -> None:
        """Update the parameters that have a gradient."""
        with self._lock:
            self._run(parameters)

    def _run(self, parameters: Iterable[nn.Parameter]) -> None:
        batch: list[_Unit] = []
        count = 0
        # Parameters without state before this step. Each of their pieces starts with the optimizer's initial
        # state, although the first piece has left a state by the time the next one runs.
        new: set[nn.Parameter] = set()
        for parameter in parameters:
            if parameter.grad is None:
                continue
            self._refuse(parameter)
            if not self.optimizer.state.get(parameter):
                new.add(parameter)
            for start, stop in self._ranges(parameter):
                if batch and count + stop - start > MAX_ELEMENTS:
                    self._update(batch, new)
                    batch, count = [], 0
                batch.append(_Unit(parameter, start, stop, self._piece(parameter, start, stop)))
                count += stop - start
        if batch:
            self._update(batch, new)

    def _refuse(self, parameter: nn.Parameter) -> None:
        """Raise an error in cases in which updates would silently be lost."""
        if self.packing is None and self.rounding is None:
            return
        if parameter.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a CUDA graph cannot repack the optimizer state in each step\n"
                "hint: step outside of the graph, or leave out the lever that packs the state"
            )
        if self.rounding is not None and type(parameter) not in (torch.Tensor, nn.Parameter):
            raise RuntimeError(
                f"`pure-bf16` cannot round a parameter of type {type(parameter).__name__} stochastically, and "
                "without that most of its updates would be lost\n"
                "hint: leave `pure-bf16` out"
            )

    def _ranges(self, parameter: torch.Tensor) -> list[tuple[int, int]]:
        count = parameter.numel()
        cuts = self.packing is not None and self.elementwise and parameter.is_floating_point()
        if count <= MAX_ELEMENTS or not cuts or not is_flat(parameter):
            return [(0, count)]
        return [(start, min(start + MAX_ELEMENTS, count)) for start in range(0, count, MAX_ELEMENTS)]

    def _update(self, units: list[_Unit], new: set[nn.Parameter]) -> None:
        state = self.optimizer.state
        kept = {unit.parameter: dict(state.get(unit.parameter) or {}) for unit in units}
        pieces: dict[nn.Parameter, list[nn.Parameter]] = {}
        for unit in units:
            pieces.setdefault(unit.parameter, []).append(unit.tensor)
            if kept[unit.parameter] and unit.parameter not in new:
                state[unit.tensor] = {
                    key: self._full(key, value, unit) for key, value in kept[unit.parameter].items()
                }
        groups = [(group, group["params"]) for group in self.optimizer.param_groups]
        try:
            for group, parameters in groups:
                group["params"] = [piece for each in parameters for piece in pieces.get(each, ())]
            self.plain(self.optimizer)
            self._round(units)
            for unit in units:
                now = state.pop(unit.tensor, None)
                for key, value in (now or {}).items():
                    kept[unit.parameter][key] = self._packed(key, value, unit, kept[unit.parameter].get(key))
        finally:
            # After an error, too, the groups and the state must be those of whole parameters.
            for group, parameters in groups:
                group["params"] = parameters
            for unit in units:
                state.pop(unit.tensor, None)
            for parameter, entries in kept.items():
                if entries:
                    state[parameter] = entries

    def _piece(self, parameter: nn.Parameter, start: int, stop: int) -> nn.Parameter:
        """Return the tensor that the optimizer updates: the parameter, a view of a piece, or an fp32 copy."""
        narrow = parameter if stop - start == parameter.numel() else _piece(parameter, start, stop)
        if not self._widens(parameter):
            return narrow
        assert narrow.grad is not None
        wide = nn.Parameter(narrow.detach().float(), requires_grad=True)
        wide.grad = narrow.grad.float()
        return wide

    def _widens(self, parameter: torch.Tensor) -> bool:
        return self.rounding is not None and self.elementwise and parameter.dtype == torch.bfloat16

    def _round(self, units: list[_Unit]) -> None:
        """Write the weights that were updated in fp32 back, rounded."""
        for unit in units:
            if self._widens(unit.parameter):
                assert self.rounding is not None
                place = unit.parameter.detach()
                place = place if unit.whole else flattened(place)[unit.start : unit.stop]
                place.copy_(self.rounding(unit.tensor.detach()))

    def _full(self, key: str, value: Any, unit: _Unit) -> Any:
        """Return a state tensor unpacked for the update of a unit."""
        full = self._in_part(key, value, unit)
        if self._widens(unit.parameter) and isinstance(full, torch.Tensor) and full.dtype == torch.bfloat16:
            # State of updates before `pure-bf16` was applied.
            return full.float()
        return full

    def _in_part(self, key: str, value: Any, unit: _Unit) -> Any:
        if isinstance(value, Held):
            part = value.parts.get((unit.start, unit.stop))
            if part is None or self.packing is None:
                return torch.zeros_like(unit.tensor, dtype=value.dtype)
            flat = self.packing.unpack(part, unit.parameter.device).to(value.dtype)
            return flat.as_strided(value.shape, value.stride) if unit.whole else flat
        if isinstance(value, torch.Tensor) and not unit.whole:
            # Each piece has its own step counter; state that is not packed yet is split like its parameter.
            alike = value.shape == unit.parameter.shape and value.stride() == unit.parameter.stride()
            if alike:
                return flattened(value)[unit.start : unit.stop]
            # All pieces of one step start from the same count; the first increments it.
            if unit.start == 0:
                self._counters[unit.parameter, key] = value.clone()
            return self._counters.get((unit.parameter, key), value).clone()
        return value

    def _packed(self, key: str, value: Any, unit: _Unit, before: Any) -> Any:
        """Return a state tensor packed after the update of a unit."""
        held = isinstance(before, Held) or (not unit.whole and self._is_piece(value, unit))
        if not held and not self._is_moment(key, value, unit.tensor):
            return value
        assert self.packing is not None
        if not isinstance(before, Held):
            like = value if unit.whole else unit.parameter
            before = Held(like.shape, like.stride(), value.dtype, {})
        place = (unit.start, unit.stop)
        before.parts[place] = self.packing.pack(key, flattened(value), before.parts.get(place))
        return before

    def _is_piece(self, value: Any, unit: _Unit) -> bool:
        """Return `True` if a value is state of a piece; such state is always packed."""
        return (
            isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape == unit.tensor.shape
        )

    def _is_moment(self, key: str, value: Any, owner: torch.Tensor) -> bool:
        return (
            self.packing is not None
            and isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.shape == owner.shape
            and is_flat(value)
            and self.packing.packs(key, value)
        )

    # ---------------------------------------------------------------------------------------- all state

    def pack_all(self) -> None:
        """Pack all optimizer state."""
        for parameter, known in self.optimizer.state.items():
            for key, value in list(known.items()):
                if self._is_moment(key, value, parameter):
                    assert self.packing is not None
                    flat = flattened(value)
                    parts = {
                        (start, stop): self.packing.pack(key, flat[start:stop], None)
                        for start, stop in self._ranges(parameter)
                    }
                    known[key] = Held(value.shape, value.stride(), value.dtype, parts)

    def loaded(self, saved: dict[str, Any]) -> None:
        """Undo PyTorch's cast of loaded state to the type of bf16 parameters, then pack the state."""
        numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.optimizer.param_groups)
        for number, parameter in zip(numbers, parameters, strict=False):
            if self._widens(parameter):
                for key, value in saved["state"].get(number, {}).items():
                    known = self.optimizer.state[parameter].get(key)
                    if isinstance(known, torch.Tensor) and known.dtype != value.dtype:
                        self.optimizer.state[parameter][key] = value.to(known.device, copy=True)
        if self.packing is not None:
            self.pack_all()

    def unpack_all(self) -> None:
        """Unpack all optimizer state."""
        for parameter, known in self.optimizer.state.items():
            for key, value in list(known.items()):
                if isinstance(value, Held):
                    known[key] = self.in_full(value, parameter.device)

    def in_full(self, held: Held, device: torch.device) -> torch.Tensor:
        """Return a packed state tensor in full."""
        assert self.packing is not None
        whole = torch.empty(held.shape.numel(), dtype=held.dtype, device=device)
        for (start, stop), part in held.parts.items():
            whole[start:stop] = self.packing.unpack(part, device).to(held.dtype)
        return whole.as_strided(held.shape, held.stride)


def take_over(optimizer: torch.optim.Optimizer, lever: str) -> tuple[Pieces, Undo]:
    """Replace an optimizer's step with one that runs piece by piece; several levers share it."""
    known = optimizer.__dict__.get(_NAME)
    if known is not None:
        return known, lambda: None
    why = why_together(optimizer)
    if why:
        raise CannotApply(lever, why)
    plain = type(optimizer)
    pieces = Pieces(optimizer)

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if self is not optimizer:
            # A copy of the optimizer has the class, but not its attributes.
            return pieces.plain(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pieces.run(parameter for group in self.param_groups for parameter in group["params"])
        if pieces.between_steps is not None:
            pieces.between_steps.end()
        return loss

    optimizer.__class__ = type(plain.__name__, (plain,), {"step": step, "__module__": plain.__module__})
    optimizer._patch_step_function()
    # A scheduler has wrapped the step of the original class.
    scheduled_step = optimizer.__dict__.pop("step", None)
    if scheduled_step is not None:
        optimizer.step = step_for_scheduler(optimizer)  # type: ignore[method-assign]
    coming: list[dict[str, Any]] = []

    def loads(_optimizer: Any, saved: dict[str, Any]) -> None:
        coming[:] = [saved]

    def loaded(_optimizer: Any) -> None:
        pieces.loaded(coming.pop())

    hooks = [
        optimizer.register_state_dict_post_hook(_unpacked_state_dict),
        optimizer.register_load_state_dict_pre_hook(loads),
        optimizer.register_load_state_dict_post_hook(loaded),
    ]
    optimizer.__dict__[_NAME] = pieces

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        pieces.unpack_all()
        del optimizer.__dict__[_NAME]
        optimizer.__dict__.pop("step", None)
        optimizer.__class__ = plain
        if scheduled_step is not None:
            optimizer.step = scheduled_step  # type: ignore[method-assign]

    return pieces, undo


def taken_over(optimizer: torch.optim.Optimizer) -> Pieces | None:
    """Return the object that runs an optimizer's step piece by piece, if there is one."""
    return optimizer.__dict__.get(_NAME)


def step_for_scheduler(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """Return a step that marks the optimizer as called, as a scheduler's wrapper does, and runs through the
    gate, if there is one.
    """

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True  # type: ignore[attr-defined]
        gate = optimizer.__dict__.get(GATE)
        return type(optimizer).step(optimizer, *args, **kwargs) if gate is None else gate(*args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _unpacked_state_dict(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Return the state dict as the optimizer would without levers: unpacked, in host memory."""
    pieces: Pieces = optimizer.__dict__[_NAME]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    state = {
        index: {
            key: pieces.in_full(value, torch.device("cpu")) if isinstance(value, Held) else value
            for key, value in known.items()
        }
        for index, known in saved["state"].items()
    }
    return {**saved, "state": state}


def _piece(parameter: nn.Parameter, start: int, stop: int) -> nn.Parameter:
    """Return a piece of a parameter and of its gradient, sharing their memory."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout != torch.strided or gradient.stride() != parameter.stride():
        dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
        gradient = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=dense.dtype, device=dense.device
        ).copy_(dense)
        parameter.grad = gradient
    piece = nn.Parameter(flattened(parameter.detach())[start:stop], requires_grad=True)
    piece.grad = flattened(gradient.detach())[start:stop]
    return piece
