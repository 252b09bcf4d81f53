"""What is known of a promise of logits: what they would be made from, what it is a view of, and the logits
themselves once something has asked for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .later import Moment, gradients_lost, learning
from .target import Target

_LEVER = "chunked-loss"
_LATE = (
    "logits that are first read after the optimizer's step, as for an accuracy, are those of the weights as they are by then: with "
    "`chunked-loss` they were not there before. Read them before the step to have those that the loss saw"
)


@dataclass(frozen=True)
class Deferred:
    """How the logits of a promise would be made."""

    forward: Callable[..., torch.Tensor]
    hidden: torch.Tensor
    # In a piece.
    tokens: int
    head: nn.Linear
    target: Target
    # The type that the layer gives.
    kind: torch.dtype
    moment: Moment
    # Types that the logits are cast to, one after the other.
    casts: tuple[torch.dtype, ...] = ()
    # Where the classes are: the last dimension, or the second.
    second: bool = False
    # The layer, where it is one product of matrices and nothing more.
    linear: nn.Linear | None = None
    # Whether a gradient goes through them.
    learns: bool = True

    def real(self, late: bool = False) -> torch.Tensor:
        """The logits. For who reads them late, when they have served, they may be those of the weights as
        they are by then.
        """
        passed = late and self.moment.has_passed()
        if passed:
            self.target.note(_LATE)
        else:
            self.moment.check()
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns and not passed):
            made = self.forward(self.hidden)
            for cast in self.casts:
                made = made.to(cast)
            return made.movedim(-1, 1) if self.second else made


@dataclass
class State:
    """What is known of one promise."""

    deferred: Deferred
    # As the logits would lie in memory.
    form: torch.Tensor
    # What this is a view of, and which.
    base: Any = None
    view: Callable[[torch.Tensor], torch.Tensor] | None = None
    # The logits; where they are not settled, only what reads them has seen these.
    real: torch.Tensor | None = None
    settled: bool = False
    # Whether something was made of them that does not come from the real ones.
    used: bool = False


def state_of(logits: Any) -> State:
    with torch._C.DisableTorchFunctionSubclass():
        return logits._memfit  # type: ignore[no-any-return]


def root_of(state: State) -> State:
    """Of what a promise is a view, in the end."""
    while state.base is not None:
        state = state_of(state.base)
    return state


def settled(logits: Any) -> torch.Tensor | None:
    """What the promise stands for since the logits were made for good."""
    state = state_of(logits)
    if state.settled or state.base is None:
        return state.real if state.settled else None
    above = settled(state.base)
    if above is None:
        return None
    assert state.view is not None
    with torch.inference_mode(False), torch.set_grad_enabled(state.deferred.learns):
        made = state.view(above)
    if made.untyped_storage()._cdata != above.untyped_storage()._cdata:
        raise RuntimeError(
            "`chunked-loss` took a copy of the logits for a view of them\nhint: leave this lever out"
        )
    state.real, state.settled = made, True
    return made


def settle(logits: Any) -> torch.Tensor:
    """The logits, for whatever may write to them or holds on to them."""
    root = root_of(state_of(logits))
    if not root.settled:
        if root.real is None:
            with learning():
                root.real = root.deferred.real()
        root.settled = True
    made = settled(logits)
    assert made is not None
    return made


def read(logits: Any) -> torch.Tensor:
    """The logits, for what only reads them."""
    known = settled(logits)
    if known is None:
        known = seen(state_of(logits))
    if known is not None:
        return known
    state = state_of(logits)
    served = root_of(state).used
    # Whose gradient is asked for later has to be what this is made from.
    root_of(state).used |= state.base is not None
    made = state.deferred.real(late=served)
    if torch.is_grad_enabled() and made.requires_grad:
        state.real = made
    return made


def seen(state: State) -> torch.Tensor | None:
    """What others that read these logits, or those of which they are a view, have made of them."""
    if state.real is not None or state.base is None:
        return state.real
    above = seen(state_of(state.base))
    if above is None:
        return None
    assert state.view is not None
    with torch.set_grad_enabled(torch.is_grad_enabled() and state.deferred.learns):
        return state.view(above)


def observed(logits: Any) -> Any:
    """Somebody wants to know the gradient of these logits."""
    if settled(logits) is None and root_of(state_of(logits)).used:
        raise gradients_lost(_LEVER)
    return logits
