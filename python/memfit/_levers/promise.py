"""The state of placeholder logits: how to compute them, the tensor they are a view of, and the computed
logits.
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
_READ_AFTER_STEP = (
    "logits read only after the optimizer's step, for an accuracy for example, are computed with the updated "
    "weights: with `chunked-loss` they did not exist before. Read them before the step to get those that the "
    "loss used"
)


@dataclass(frozen=True)
class Deferred:
    """The computation of a placeholder's logits."""

    forward: Callable[..., torch.Tensor]
    hidden: torch.Tensor
    # Tokens per chunk.
    tokens: int
    head: nn.Linear
    target: Target
    # The data type of the layer's output.
    kind: torch.dtype
    moment: Moment
    # Data types the logits are cast to, in order.
    casts: tuple[torch.dtype, ...] = ()
    # `True` if the classes are the second dimension instead of the last.
    second: bool = False
    # The layer, if it is a plain matrix product.
    linear: nn.Linear | None = None
    # `True` if a gradient flows through them.
    learns: bool = True

    def real(self, late: bool = False) -> torch.Tensor:
        """Compute the logits. With `late`, for reads after the loss, they may use updated weights."""
        passed = late and self.moment.has_passed()
        if passed:
            self.target.note(_READ_AFTER_STEP)
        else:
            self.moment.check()
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns and not passed):
            made = self.forward(self.hidden)
            for cast in self.casts:
                made = made.to(cast)
            return made.movedim(-1, 1) if self.second else made


@dataclass
class State:
    """The state of one placeholder."""

    deferred: Deferred
    # A meta tensor with the logits' memory layout.
    form: torch.Tensor
    # The tensor this is a view of, and the view function.
    base: Any = None
    view: Callable[[torch.Tensor], torch.Tensor] | None = None
    # The logits; unless they are settled, only reads have seen them.
    real: torch.Tensor | None = None
    settled: bool = False
    # Set if a result was computed without the real logits.
    used: bool = False


def state_of(logits: Any) -> State:
    with torch._C.DisableTorchFunctionSubclass():
        return logits._memfit  # type: ignore[no-any-return]


def root_of(state: State) -> State:
    """Return the state of the tensor that a placeholder is ultimately a view of."""
    while state.base is not None:
        state = state_of(state.base)
    return state


def settled(logits: Any) -> torch.Tensor | None:
    """Return the logits that replaced the placeholder, if any."""
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
            "`chunked-loss` expected a view of the logits but got a copy\nhint: leave this lever out"
        )
    state.real, state.settled = made, True
    return made


def settle(logits: Any) -> torch.Tensor:
    """Return the logits for code that may write to them or keep a reference."""
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
    """Return the logits for code that only reads them."""
    known = settled(logits)
    if known is None:
        known = seen(state_of(logits))
    if known is not None:
        return known
    state = state_of(logits)
    served = root_of(state).used
    # A gradient requested later has to be that of the tensor this is computed from.
    root_of(state).used |= state.base is not None
    made = state.deferred.real(late=served)
    if torch.is_grad_enabled() and made.requires_grad:
        state.real = made
    return made


def seen(state: State) -> torch.Tensor | None:
    """Return logits that another read already computed, of this placeholder or the one it is a view of."""
    if state.real is not None or state.base is None:
        return state.real
    above = seen(state_of(state.base))
    if above is None:
        return None
    assert state.view is not None
    with torch.set_grad_enabled(torch.is_grad_enabled() and state.deferred.learns):
        return state.view(above)


def observed(logits: Any) -> Any:
    """Refuse to report the gradient of logits that were already used."""
    if settled(logits) is None and root_of(state_of(logits)).used:
        raise gradients_lost(_LEVER)
    return logits
