"""Handles the failure of a micro-batch: another attempt, or an error that explains why there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from torch import nn

from memfit import _core

from .device import Meter
from .division import Undividable
from .does_not_fit import TOO_LARGE, division_error, memory_error, ranks_error
from .faults import Fault, StepInvalid, forget
from .parameters import Parameters
from .ranks import SingleRank
from .stopping import describe_memory, smaller_batch
from .updates import Updates

# Maximum number of attempts at a window that end because other ranks failed.
_MAX_ATTEMPTS = 20


class Failures:
    """Failures of the open window."""

    def __init__(
        self,
        model: nn.Module,
        controller: _core.Controller,
        ranks: SingleRank,
        updates: Updates,
        meter: Meter,
        parameters: Parameters,
        *,
        in_backward: bool,
        applied: Sequence[str],
        roll_back: Callable[[], None],
    ) -> None:
        self._model = model
        self._controller = controller
        self._ranks = ranks
        self._updates = updates
        self._meter = meter
        self._parameters = parameters
        self._in_backward = in_backward
        # The levers in use.
        self._applied = applied
        self._roll_back = roll_back
        self._why = ""
        # The reason why a batch that did not fit could not be divided.
        self._undividable = ""
        # Set if a micro-batch was abandoned because another rank failed, and this rank's error message.
        self.given_up = False
        self.lost = ""

    def begin(self) -> None:
        """Start a new window."""
        self._undividable = ""

    def understand(self, error: Exception) -> Fault | None:
        """Return the fault if an error is about memory; `None` if another rank failed, which is recorded. Any
        other error is the user's: roll back and raise it unchanged.
        """
        if self._ranks.gave_up(error):
            self.lost = str(error)
            forget(error)
            self.given_up = True
            return None
        fault = Fault.from_error(error, self._meter.device)
        if fault.kind not in ("other", "sticky"):
            forget(error)
            return fault
        self.end_for_others(fails=fault.kind == "other")
        if self._in_backward:
            self.undo_backward(fault)
        self._roll_back()
        raise error

    def end_for_others(self, *, fails: bool) -> None:
        """Tell the other ranks of a failure, so that they do not wait for this one."""
        if self._ranks.world > 1 and (self._controller.whole or self._ranks.inside):
            with contextlib.suppress(RuntimeError):
                if fails:
                    self._ranks.failed(0, 0)
                    self._ranks.leave()
                self._ranks.agree(self._controller, "over", self._parameters)

    def interrupted(self, error: BaseException) -> None:
        """Undo the updates of an interrupted backward pass, or raise `StepInvalid`."""
        if self._in_backward:
            self.undo_backward(Fault.from_error(error, self._meter.device))

    def undo_backward(self, fault: Fault) -> None:
        """Undo the parameter updates of a failed backward pass with the optimizer in it, or raise
        `StepInvalid`.
        """
        try:
            self._updates.undo(fault)
        except StepInvalid:
            self._roll_back()
            raise

    def outcome_of_others(self, attempt: int) -> str:
        """Return what this rank does after another one failed."""
        return "again" if self._ranks.can_retry and attempt < _MAX_ATTEMPTS else "lost"

    def decide(self, index: int, size: int, fault: Fault, whole: Undividable | None = None) -> str:
        """Return "again" or "over" after a failure with `size` samples of a batch, which may be one that has
        to run `whole`.
        """
        if self._in_backward:
            self._why = "whole"
            return "over"
        if whole is not None:
            self._undividable = str(whole)
            return "over"
        decision = self._controller.failed(
            index, size, fault.types, fault.message, fault.free, fault.capacity
        )
        self._why = decision
        return "again" if decision == "again" and self._ranks.can_retry else "over"

    def explain(self, fault: Fault | None, rank: float, items: int) -> Exception:
        """Return the error of a window that cannot be run; its last batch has `items` samples."""
        if fault is None:
            return ranks_error(int(rank), self.lost if rank == self._ranks.rank else "")
        if self._undividable:
            return division_error(self._undividable, TOO_LARGE, fault.message)
        found = describe_memory(self._model, self._updates.optimizer, self._meter, fault, self._applied)
        if self._why == "whole":
            found = "; ".join(filter(None, (found, smaller_batch(items))))
        return memory_error(self._why, fault, found, self._ranks.can_retry)
