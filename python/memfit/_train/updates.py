"""Runs the optimizer's step completely or not at all.

An optimizer writes to parameters and state as it goes, and afterwards a step that failed half-way looks like
a complete one. Memory for its temporaries is therefore freed before it starts. If it fails all the same, it
is retried only if nothing was written yet, or if everything can be restored.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memfit import _core
from memfit._levers.held import Held
from memfit._levers.in_backward import begin
from memfit._levers.saying import warn

from .device import Meter, local, room
from .faults import Fault, StepDoesNotFit, StepInvalid, collect, forget
from .optimizers import has_begun, members


def _keep(tensor: torch.Tensor) -> Callable[[], Any]:
    copy = tensor.detach().to("cpu", copy=True)
    return lambda: tensor.copy_(copy)


# Number of steps after which memory for a step's temporaries is checked again, if there was plenty.
_STEPS_BETWEEN_CHECKS = 16


class Updates:
    """Steps of an optimizer, or of several together. With `backup`, everything that a step writes to is
    copied to the host before it, which takes the time of that copy and as much host memory as parameters and
    optimizer state.
    """

    def __init__(self, optimizer: Any, backup: bool) -> None:
        self.optimizer = optimizer
        self._backup = backup
        self._warned = False
        # Number of steps for which there certainly is enough memory.
        self._steps_without_check = 0
        self._known: set[torch.Tensor] = set()
        self._versions: list[int] = []
        self._copies: list[Callable[[], Any]] | None = None

    def begin(self) -> None:
        """Save the state before a backward pass that updates parameters."""
        for optimizer in members(self.optimizer):
            begin(optimizer)
        self._known = set(self.optimizer.state)
        self._versions = [tensor._version for tensor in self._written()]
        self._copies = self._copied()

    def undo(self, fault: Fault) -> None:
        """Undo the updates of such a backward pass that failed."""
        for parameter in [each for each in self.optimizer.state if each not in self._known]:
            del self.optimizer.state[parameter]
        wrote = [tensor._version for tensor in self._written()] != self._versions
        self._undo(self._known, self._copies, fault, wrote)

    def _copied(self) -> list[Callable[[], Any]] | None:
        """Return functions that restore everything a step writes to; `None` without `backup`."""
        if not self._backup:
            return None
        try:
            held = [value.keep() for value in self._states() if isinstance(value, Held)]
            entries = {parameter: dict(known) for parameter, known in self.optimizer.state.items()}
            return [*held, *[_keep(tensor) for tensor in self._written()], lambda: self._replace(entries)]
        except Exception as error:
            fault = Fault.from_error(error, torch.device("cpu"))
            if fault.kind not in ("device", "host"):
                raise
            forget(error)
        raise StepDoesNotFit(
            "there is not enough host memory for the copy that `backup=True` makes; parameters and "
            "optimizer state are as they were before\n"
            "hint: it takes as much host memory as parameters and optimizer state\n"
            f"{fault.message}"
        )

    def run(self, step: Callable[[], None], meter: Meter) -> None:
        """Run a step."""
        device = meter.device
        state = self.optimizer.state
        count = 0
        for group in self.optimizer.param_groups:
            count += len(group["params"])
        # Once all parameters have optimizer state, a failed step creates none.
        known = set(state) if len(state) < count else None
        # If the backward pass updated parameters, use the copies from before it.
        copies = self._copied() if self._copies is None else self._copies
        has_room = not meter.cuda or self._has_room(meter)
        # The last attempt updates one parameter at a time.
        for one_by_one in (False, True) if has_room else (True,):
            fault, wrote = self._attempt(step, device, one_by_one)
            if fault is None:
                return
            self._undo(known, copies, fault, wrote)
            collect(device)
            if one_by_one:
                raise StepDoesNotFit(
                    "out of memory in the optimizer's step; parameters and optimizer state are as they were "
                    "before\n"
                    "hint: use an optimizer with less state: bf16 or 8-bit state (changes-training), or "
                    "state on the host (exact)\n"
                    f"{fault.message}"
                )
        raise AssertionError("the last attempt returns or raises")

    def _attempt(
        self, step: Callable[[], None], device: torch.device, one_by_one: bool
    ) -> tuple[Fault | None, bool]:
        """Return the fault of a failed step, and `True` if it may have written something."""
        kept = []
        if one_by_one:
            kept = [(group, group["foreach"]) for group in self.optimizer.param_groups if "foreach" in group]
            for group, _ in kept:
                if not group.get("fused"):
                    group["foreach"] = False
            self._warn_once()
        fault, wrote = None, True
        try:
            step()
            return None, False
        except Exception as error:
            fault = Fault.from_error(error, device)
            if fault.kind not in ("device", "host"):
                raise
            # The optimizer state is created before any parameter is updated. After that, only a copy helps:
            # Adam allocates its temporaries once its moments have been updated.
            made = any(frame.name == "_init_group" for frame in traceback.extract_tb(error.__traceback__))
            wrote = not made or has_begun(self.optimizer)
            forget(error)
        finally:
            for group, foreach in kept:
                group["foreach"] = foreach
        return fault, wrote

    def _undo(
        self,
        known: set[torch.Tensor] | None,
        copies: list[Callable[[], Any]] | None,
        fault: Fault,
        wrote: bool,
    ) -> None:
        """Undo a failed step."""
        # Incomplete state of a parameter would be taken for complete.
        state = self.optimizer.state
        for parameter in [each for each in state if known is not None and each not in known]:
            del state[parameter]
        if not wrote:
            return
        if copies is None:
            memory = fault.kind in ("device", "host")
            why = (
                "the optimizer ran out of memory"
                if memory
                else "the backward pass, with the optimizer in it, was interrupted"
            )
            raise StepInvalid(
                f"{why} in the middle of its step: some parameters were updated and others were not\n"
                "hint: go back to the last checkpoint. `fused=True` needs no temporaries, `foreach=False` "
                "those of one parameter, and `memfit.Step(..., backup=True)` keeps a copy on the host to restore\n"
                f"{fault.message}"
            )
        with torch.no_grad():
            for put_back in copies:
                put_back()

    def _written(self) -> Iterator[torch.Tensor]:
        """Yield everything that a step writes to: the parameters and existing optimizer state."""
        for group in self.optimizer.param_groups:
            yield from group["params"]
        yield from (value for value in self._states() if isinstance(value, torch.Tensor))

    def _replace(self, entries: dict[Any, dict[str, Any]]) -> None:
        """Set the optimizer state to these entries only."""
        self.optimizer.state.clear()
        self.optimizer.state.update({parameter: dict(known) for parameter, known in entries.items()})

    def _states(self) -> Iterator[Any]:
        """Yield the existing optimizer state."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield from (self.optimizer.state.get(parameter) or {}).values()

    def _has_room(self, meter: Meter) -> bool:
        """Return `True` if a step on all parameters at once fits: new optimizer state, and temporaries."""
        if self._steps_without_check > 0:
            self._steps_without_check -= 1
            return True
        states, temporaries = self.need()
        free, _ = room(meter.device)
        seen = meter.look()
        spare = free + seen.reserved - seen.allocated - states - temporaries
        # With memory for twice the temporaries, later steps skip this check for a while.
        self._steps_without_check = _STEPS_BETWEEN_CHECKS if not states and spare > temporaries else 0
        return spare > 0

    def need(self, coming: bool = False) -> tuple[int, int]:
        """Return the bytes of optimizer state and of temporaries that the next step allocates; with `coming`,
        also for parameters that have no gradient yet.
        """
        states = temporaries = 0
        for optimizer in members(self.optimizer):
            made, passing = _need(optimizer, coming)
            states, temporaries = states + made, max(temporaries, passing)
        return states, temporaries

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            warn(
                "the optimizer's temporaries do not fit, so it steps one parameter at a time; `fused=True` "
                "needs none and is faster"
            )


def _need(optimizer: Any, coming: bool) -> tuple[int, int]:
    states = temporaries = 0
    for group in optimizer.param_groups:
        moved = [one for one in group["params"] if one.requires_grad and (coming or one.grad is not None)]
        if not moved:
            continue
        fused = bool(group.get("fused"))
        made, passing = _core.Controller.update_need(
            type(optimizer).__name__,
            together=not fused and group.get("foreach") is not False,
            fused=fused,
            momentum=bool(group.get("momentum")),
            extra=bool(group.get("amsgrad") or group.get("centered")),
            decays=bool(group.get("weight_decay")),
            moved=sum(local(one).nbytes for one in moved),
            largest=max(local(one).nbytes for one in moved),
            new=sum(local(one).nbytes for one in moved if not optimizer.state.get(one)),
        )
        states, temporaries = states + made, max(temporaries, passing)
    return states, temporaries
