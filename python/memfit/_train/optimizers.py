"""Several optimizers that step together as one; each keeps its own groups and state."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch


class OptimizerGroup:
    """The optimizer interface that a step needs, for several optimizers that step one after the other."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = tuple(optimizers)
        self.state = _States(self.optimizers)
        # Number of optimizers that completed the current step.
        self._stepped = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        """Step all optimizers."""
        self._stepped = 0
        for optimizer in self.optimizers:
            optimizer.step()
            self._stepped += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all optimizers."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


def as_one(optimizer: Any) -> Any:
    """Wrap several optimizers as one; return a single one unchanged."""
    return OptimizerGroup(optimizer) if isinstance(optimizer, (list, tuple)) else optimizer


def members(optimizer: Any) -> tuple[Any, ...]:
    """Return the individual optimizers."""
    return optimizer.optimizers if isinstance(optimizer, OptimizerGroup) else (optimizer,)


def schedulers(given: Any) -> tuple[Any, ...]:
    """Return the individual schedulers of a step: none, one, or those of a list."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def has_begun(optimizer: Any) -> bool:
    """Return `True` if an earlier optimizer had updated parameters before another one failed in the same
    step.
    """
    return isinstance(optimizer, OptimizerGroup) and optimizer._stepped > 0


class _States(MutableMapping[torch.Tensor, Any]):
    """The state of all optimizers as one mapping; each parameter's state stays in its own optimizer."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        for optimizer in self._optimizers:
            if parameter in optimizer.state:
                return optimizer.state[parameter]
        raise KeyError(parameter)

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        for optimizer in self._optimizers:
            if any(parameter is one for group in optimizer.param_groups for one in group["params"]):
                optimizer.state[parameter] = state
                return
        raise KeyError(parameter)

    def __delitem__(self, parameter: torch.Tensor) -> None:
        for optimizer in self._optimizers:
            if parameter in optimizer.state:
                del optimizer.state[parameter]
                return
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (parameter for optimizer in self._optimizers for parameter in optimizer.state)

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self._optimizers)
