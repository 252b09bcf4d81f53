"""The optimizer's own step: whole, or not at all.

An optimizer writes to parameters and states as it goes, so a step that fails half-way cannot be told from a whole one by
looking. Its temporaries are therefore given room before it starts; where it fails all the same, it is tried again only if
nothing was written yet, or if everything can be put back.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator

import torch

from .device import local, room
from .faults import Fault, StepDoesNotFit, StepInvalid, collect, forget


class Updates:
    """Steps of one optimizer. With `backup`, all that a step writes to is copied to the host before it, which takes the
    time of that copy and as much of the host's memory as parameters and states have."""

    def __init__(self, optimizer: torch.optim.Optimizer, backup: bool) -> None:
        self._optimizer = optimizer
        self._backup = backup
        self._said = False

    def run(self, step: Callable[[], bool], device: torch.device) -> bool:
        """Run a step; whether it was skipped."""
        known = set(self._optimizer.state)
        versions = [tensor._version for tensor in self._written()]
        copies = (
            [tensor.detach().to("cpu", copy=True) for tensor in self._written()] if self._backup else None
        )
        one_by_one = not self._has_room(device)
        for last in (one_by_one, True):
            fault, wrote, skipped = self._attempt(step, device, last)
            if fault is None:
                return skipped
            self._undo(known, versions, copies, fault, wrote)
            collect(device)
            if last:
                raise StepDoesNotFit(
                    "there is no room for the optimizer's step; parameters and states are as they were before\n"
                    "hint: an optimizer with smaller states fits where this one does not: bf16 or 8-bit states "
                    f"(changes-training), or states on the host (exact)\n{fault.message}"
                )
        raise AssertionError("the last attempt returns or raises")

    def _attempt(
        self, step: Callable[[], bool], device: torch.device, one_by_one: bool
    ) -> tuple[Fault | None, bool, bool]:
        """What went wrong, whether something may have been written by then, and whether the step was skipped."""
        kept = [(group, group["foreach"]) for group in self._optimizer.param_groups if "foreach" in group]
        if one_by_one:
            for group, _ in kept:
                if not group.get("fused"):
                    group["foreach"] = False
            self._say()
        fault, wrote = None, True
        try:
            return None, False, step()
        except Exception as error:
            fault = Fault.of(error, device)
            if fault.kind not in ("device", "host"):
                raise
            # States are made before anything is moved. Past that, only a copy helps: Adam's temporaries come after its
            # moments have moved.
            wrote = all(frame.name != "_init_group" for frame in traceback.extract_tb(error.__traceback__))
            forget(error)
        finally:
            for group, foreach in kept:
                group["foreach"] = foreach
        return fault, wrote, False

    def _undo(
        self,
        known: set[torch.Tensor],
        versions: list[int],
        copies: list[torch.Tensor] | None,
        fault: Fault,
        wrote: bool,
    ) -> None:
        """Take back what a failed step did."""
        # States that were made half-way would be taken for whole ones.
        for parameter in [parameter for parameter in self._optimizer.state if parameter not in known]:
            del self._optimizer.state[parameter]
        written = list(self._written())
        if not wrote and [tensor._version for tensor in written] == versions:
            return
        if copies is None:
            raise StepInvalid(
                "the optimizer ran out of memory in the middle of its step: some parameters have moved, and others have "
                "not\n"
                "hint: go back to the last checkpoint. `foreach=False` and `fused=True` need no temporaries, and "
                f"`memfit.Step(..., backup=True)` keeps a copy on the host to go back to\n{fault.message}"
            )
        with torch.no_grad():
            for tensor, copy in zip(written, copies, strict=True):
                tensor.copy_(copy)

    def _written(self) -> Iterator[torch.Tensor]:
        """What a step writes to: the parameters, and the states that there are."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter
                state = self._optimizer.state.get(parameter)
                if state:
                    yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def _has_room(self, device: torch.device) -> bool:
        """Whether the temporaries of a step on all parameters at once fit: about as much as the parameters have."""
        if device.type != "cuda":
            return True
        at_once = 0
        for group in self._optimizer.param_groups:
            if group.get("fused") or group.get("foreach") is False:
                continue
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            at_once += sum(local(parameter).nbytes for parameter in moved)
        if at_once == 0:
            return True
        free, _ = room(device)
        stats = torch.cuda.memory_stats(device)
        cached = stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)
        missing = [
            parameter
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter not in self._optimizer.state
        ]
        # Most optimizers keep two numbers a parameter, made in the first step.
        return bool(free + cached > at_once + 2 * sum(local(parameter).nbytes for parameter in missing))

    def _say(self) -> None:
        if not self._said:
            self._said = True
            warnings.warn(
                "memfit: the optimizer's temporaries do not fit, so it steps one parameter at a time; `fused=True` needs "
                "none and is faster",
                stacklevel=6,
            )
