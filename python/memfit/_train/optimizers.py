"""Several optimizers that step together, as one: each keeps its own groups and states."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch


class Together:
    """What a step needs of an optimizer, of several: they step one behind the other."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = tuple(optimizers)
        self.state = _States(self.optimizers)
        # How many have stepped whole in this step.
        self._stepped = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all, which are their own."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        """All of them step."""
        self._stepped = 0
        for optimizer in self.optimizers:
            optimizer.step()
            self._stepped += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """All of them let their gradients go."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


def as_one(optimizer: Any) -> Any:
    """An optimizer as it is; several as one."""
    return Together(optimizer) if isinstance(optimizer, (list, tuple)) else optimizer


def members(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers that it consists of."""
    return optimizer.optimizers if isinstance(optimizer, Together) else (optimizer,)


def has_begun(optimizer: Any) -> bool:
    """Whether a step that failed had moved parameters before the optimizer that failed began."""
    return isinstance(optimizer, Together) and optimizer._stepped > 0


class _States(MutableMapping[torch.Tensor, Any]):
    """The states of all optimizers: each parameter's are with the optimizer that has it."""

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
