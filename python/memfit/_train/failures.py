"""What follows when a part of a window fails: another attempt, or an error that says why there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from torch import nn

from memfit import _core

from .device import Meter
from .division import Undividable
from .does_not_fit import of_division, of_memory, of_ranks
from .faults import Fault, StepInvalid, forget
from .parameters import Parameters
from .ranks import Alone
from .stopping import smaller_batch, told
from .updates import Updates

# Attempts at a window that end since other ranks failed.
_ATTEMPTS = 20


class Failures:
    """Failures of the open window."""

    def __init__(
        self,
        model: nn.Module,
        controller: _core.Controller,
        ranks: Alone,
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
        # The levers that are in use.
        self._applied = applied
        self._roll_back = roll_back
        self._why = ""
        # Why a batch that did not fit could not be divided.
        self._undividable = ""
        # Whether a part was given up since another rank failed, and what this rank saw of it.
        self.given_up = False
        self.lost = ""

    def begin(self) -> None:
        """A window begins."""
        self._undividable = ""

    def understand(self, error: Exception) -> Fault | None:
        """What went wrong, if it is memory; nothing if another rank failed, which is noted. All other errors
        are the user's, and go on as they came: everything is as before.
        """
        if self._ranks.gave_up(error):
            self.lost = str(error)
            forget(error)
            self.given_up = True
            return None
        fault = Fault.of(error, self._meter.device)
        if fault.kind not in ("other", "sticky"):
            forget(error)
            return fault
        self.end_for_others(fails=fault.kind == "other")
        if self._in_backward:
            self.undo_backward(fault)
        self._roll_back()
        raise error

    def end_for_others(self, *, fails: bool) -> None:
        """The other ranks are not left waiting for this one."""
        if self._ranks.world > 1 and (self._controller.whole or self._ranks.inside):
            with contextlib.suppress(RuntimeError):
                if fails:
                    self._ranks.failed(0, 0)
                    self._ranks.leave()
                self._ranks.agree(self._controller, "over", self._parameters)

    def interrupted(self, error: BaseException) -> None:
        """A part was left by hand: what a backward updated by then is taken back, or it is said."""
        if self._in_backward:
            self.undo_backward(Fault.of(error, self._meter.device))

    def undo_backward(self, fault: Fault) -> None:
        """A backward that updates as it goes failed: it leaves the parameters as they were, or it is said."""
        try:
            self._updates.undo(fault)
        except StepInvalid:
            self._roll_back()
            raise

    def outcome_of_others(self, attempt: int) -> str:
        """What follows for this rank where another one failed."""
        return "again" if self._ranks.can_retry and attempt < _ATTEMPTS else "lost"

    def decide(self, index: int, size: int, fault: Fault, whole: Undividable | None = None) -> str:
        """What follows from a failure of so many samples of a batch, which may be one that has to run
        `whole`: "again" or "over".
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
        """The error of a window that cannot be run; its last batch has so many samples."""
        if fault is None:
            return of_ranks(int(rank), self.lost if rank == self._ranks.rank else "")
        if self._undividable:
            return of_division(self._undividable, asked=False, message=fault.message)
        found = told(self._model, self._updates.optimizer, self._meter, fault, self._applied)
        if self._why == "whole":
            found = "; ".join(filter(None, (found, smaller_batch(items))))
        return of_memory(self._why, fault, found, self._ranks.can_retry)
