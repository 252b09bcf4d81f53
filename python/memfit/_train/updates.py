"""The optimizer's own step: whole, or not at all.

An optimizer writes to parameters and states as it goes, so a step that fails half-way cannot be told from a
whole one by looking. Its temporaries are therefore given room before it starts; where it fails all the same,
it is tried again only if nothing was written yet, or if everything can be put back.
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


# Steps after which the room for a step's temporaries is looked at again, where it was ample.
_ROOMY = 16


class Updates:
    """Steps of an optimizer, or of several together. With `backup`, all that a step writes to is copied to
    the host before it, which takes the time of that copy and as much of the host's memory as parameters and
    states have.
    """

    def __init__(self, optimizer: Any, backup: bool) -> None:
        self.optimizer = optimizer
        self._backup = backup
        self._said = False
        # Steps for which there is room in any case.
        self._roomy = 0
        self._known: set[torch.Tensor] = set()
        self._versions: list[int] = []
        self._copies: list[Callable[[], Any]] | None = None

    def begin(self) -> None:
        """Remember what there is before a backward that updates as it goes."""
        for optimizer in members(self.optimizer):
            begin(optimizer)
        self._known = set(self.optimizer.state)
        self._versions = [tensor._version for tensor in self._written()]
        self._copies = self._copied()

    def undo(self, fault: Fault) -> None:
        """Take back what such a backward did before it failed."""
        for parameter in [each for each in self.optimizer.state if each not in self._known]:
            del self.optimizer.state[parameter]
        wrote = [tensor._version for tensor in self._written()] != self._versions
        self._undo(self._known, self._copies, fault, wrote)

    def _copied(self) -> list[Callable[[], Any]] | None:
        """Copies of all that a step writes to, as what puts each back; none where they were not asked for."""
        if not self._backup:
            return None
        try:
            held = [value.keep() for value in self._states() if isinstance(value, Held)]
            entries = {parameter: dict(known) for parameter, known in self.optimizer.state.items()}
            return [*held, *[_keep(tensor) for tensor in self._written()], lambda: self._replace(entries)]
        except Exception as error:
            fault = Fault.of(error, torch.device("cpu"))
            if fault.kind not in ("device", "host"):
                raise
            forget(error)
        raise StepDoesNotFit(
            "there is no room for the copy that `backup=True` asks for; parameters and states are as they were before\n"
            f"hint: it takes as much of the host's memory as parameters and states have\n{fault.message}"
        )

    def run(self, step: Callable[[], None], meter: Meter) -> None:
        """Run a step."""
        device = meter.device
        state = self.optimizer.state
        count = sum([len(group["params"]) for group in self.optimizer.param_groups])
        # Once all have a state, a failed step makes no new ones.
        known = set(state) if len(state) < count else None
        # Where the backward updated already, the copies are those from before it.
        copies = self._copied() if self._copies is None else self._copies
        one_by_one = meter.cuda and not self._has_room(meter)
        for last in (one_by_one, True):
            fault, wrote = self._attempt(step, device, last)
            if fault is None:
                return
            self._undo(known, copies, fault, wrote)
            collect(device)
            if last:
                raise StepDoesNotFit(
                    "there is no room for the optimizer's step; parameters and states are as they were before\n"
                    "hint: an optimizer with smaller states fits where this one does not: bf16 or 8-bit states "
                    f"(changes-training), or states on the host (exact)\n{fault.message}"
                )
        raise AssertionError("the last attempt returns or raises")

    def _attempt(
        self, step: Callable[[], None], device: torch.device, one_by_one: bool
    ) -> tuple[Fault | None, bool]:
        """What went wrong, and whether something may have been written by then."""
        kept = [(group, group["foreach"]) for group in self.optimizer.param_groups if "foreach" in group]
        if one_by_one:
            for group, _ in kept:
                if not group.get("fused"):
                    group["foreach"] = False
            self._say()
        fault, wrote = None, True
        try:
            step()
            return None, False
        except Exception as error:
            fault = Fault.of(error, device)
            if fault.kind not in ("device", "host"):
                raise
            # States are made before anything is moved. Past that, only a copy helps: Adam's temporaries come
            # after its moments have moved.
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
        """Take back what a failed step did."""
        # States that were made half-way would be taken for whole ones.
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
                else "the backward was left, with the optimizer in it,"
            )
            raise StepInvalid(
                f"{why} in the middle of its step: some parameters have moved, and others have not\n"
                "hint: go back to the last checkpoint. `foreach=False` and `fused=True` need no temporaries, and "
                f"`memfit.Step(..., backup=True)` keeps a copy on the host to go back to\n{fault.message}"
            )
        with torch.no_grad():
            for put_back in copies:
                put_back()

    def _written(self) -> Iterator[torch.Tensor]:
        """What a step writes to: the parameters, and the states that there are."""
        for group in self.optimizer.param_groups:
            yield from group["params"]
        yield from (value for value in self._states() if isinstance(value, torch.Tensor))

    def _replace(self, entries: dict[Any, dict[str, Any]]) -> None:
        """Let parameters have these states, and no others."""
        self.optimizer.state.clear()
        self.optimizer.state.update({parameter: dict(known) for parameter, known in entries.items()})

    def _states(self) -> Iterator[Any]:
        """The states that there are."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield from (self.optimizer.state.get(parameter) or {}).values()

    def _has_room(self, meter: Meter) -> bool:
        """Whether what a step on all parameters at once makes fits: states of the first one, and
        temporaries.
        """
        if self._roomy > 0:
            self._roomy -= 1
            return True
        states, temporaries = self.need()
        free, _ = room(meter.device)
        seen = meter.look()
        spare = free + seen.reserved - seen.allocated - states - temporaries
        # Where there is room for twice as much, it is not looked at in every step.
        self._roomy = _ROOMY if not states and spare > temporaries else 0
        return spare > 0

    def need(self, coming: bool = False) -> tuple[int, int]:
        """Bytes of states and of temporaries that the next step makes; with `coming`, of parameters without
        gradients as well, which will have one by then.
        """
        states = temporaries = 0
        for optimizer in members(self.optimizer):
            made, passing = _need(optimizer, coming)
            states, temporaries = states + made, max(temporaries, passing)
        return states, temporaries

    def _say(self) -> None:
        if not self._said:
            self._said = True
            warn(
                "the optimizer's temporaries do not fit, so it steps one parameter at a time; `fused=True` needs none and is "
                "faster"
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
