"""What a loss function returns, and what a batch's parts came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .faults import is_memory

# A loss, and the number that makes a sum of it.
Weighed = tuple[torch.Tensor, float]


def scalar(value: torch.Tensor) -> torch.Tensor:
    """A loss as a number without dimensions."""
    if value.dim() == 0:
        return value
    if value.numel() != 1:
        raise TypeError(
            f"the loss function returned a tensor of shape {tuple(value.shape)}\n"
            "hint: return the mean of the losses, or `(losses.sum(), count)`"
        )
    return value.reshape(())


def read_losses(
    returned: Any, counted: float | Mapping[str, float]
) -> tuple[dict[str, Weighed], dict[str, float]]:
    """Each loss with what makes a sum of it, and its count; `counted` is what a mean is over."""
    named = returned if isinstance(returned, Mapping) else {"": returned}
    if not named:
        raise TypeError("the loss function returned an empty dictionary: there is nothing to learn from")
    read: dict[str, Weighed] = {}
    counts: dict[str, float] = {}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            weight = float(counted[name] if isinstance(counted, Mapping) else counted)
            read[name], counts[name] = (scalar(value), weight), weight
        elif isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.Tensor):
            read[name], counts[name] = (scalar(value[0]), 1.0), float(value[1])
        else:
            raise TypeError(
                f"the loss function returned {type(value).__name__}\n"
                "hint: return a mean, `(sum, count)`, or a dictionary of these"
            )
    return read, counts


class Tally:
    """What a batch's parts came to.

    Kept are the parts' shares of the window's loss, which are there anyway; they are added when somebody
    asks, since most steps' losses are never looked at.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Each loss's shares with what makes sums of them, and its count.
        self._shares: dict[str, list[Weighed]] = {}
        self._counts: dict[str, float] = {}
        self._ignored: list[float] = []
        # Whether it was noted that parts leave out unlike numbers of labels.
        self.uncounted = False
        self.parts = 0
        self.changed: tuple[str, ...] = ()

    @property
    def labels_differ(self) -> bool:
        return len(set(self._ignored)) > 1

    def labels(self, share: float | None) -> None:
        """The share of a part's labels that are ignored, if it has labels."""
        if share is not None:
            self._ignored.append(share)

    def add(self, name: str, share: torch.Tensor, back: float, count: float) -> None:
        """A loss's share, what makes a sum over so many of it."""
        self._shares.setdefault(name, []).append((share, back))
        self._counts[name] = self._counts.get(name, 0.0) + count

    def _means(self) -> dict[str, torch.Tensor]:
        try:
            return {name: self._mean(name, shares) for name, shares in self._shares.items()}
        except RuntimeError as error:
            if not is_memory(error, self._device):
                raise
        # The step is done; not even a number fits beside it now.
        return {
            name: self._mean(name, [(share.cpu(), back) for share, back in shares])
            for name, shares in self._shares.items()
        }

    def _mean(self, name: str, shares: list[Weighed]) -> torch.Tensor:
        count = max(self._counts[name], 1e-300)
        total = None
        for share, back in shares:
            part = share if back == count else share * (back / count)
            total = part if total is None else total + part
        assert total is not None
        return total

    def mean(self) -> torch.Tensor:
        means = list(self._means().values())
        return sum(means[1:], means[0]) if means else torch.zeros((), device=self._device)

    def named(self) -> dict[str, torch.Tensor] | None:
        return None if set(self._shares) <= {""} else self._means()


def is_mean(returned: Any) -> bool:
    """Whether a loss function returned means, and no sums."""
    values = returned.values() if isinstance(returned, Mapping) else [returned]
    return all(isinstance(value, torch.Tensor) for value in values)
