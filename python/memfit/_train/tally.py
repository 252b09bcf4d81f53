"""What a loss function returns, and what a batch's parts came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .faults import is_memory

# A loss, and the number that makes a sum of it.
Weighed = tuple[torch.Tensor, float]


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
        weight = float(counted[name] if isinstance(counted, Mapping) else counted)
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise TypeError(
                    f"the loss function returned a tensor of shape {tuple(value.shape)}\n"
                    "hint: return the mean of the losses, or `(losses.sum(), count)`"
                )
            read[name], counts[name] = (value if value.dim() == 0 else value.reshape(()), weight), weight
        elif isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.Tensor):
            total = value[0]
            read[name] = total if total.dim() == 0 else total.reshape(()), 1.0
            counts[name] = float(value[1])
        else:
            raise TypeError(
                f"the loss function returned {type(value).__name__}\n"
                "hint: return a mean, `(sum, count)`, or a dictionary of these"
            )
    return read, counts


class Tally:
    """What a batch's parts came to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, float] = {}
        self._ignored: list[float] = []
        self._ratios: dict[str, float] = {}
        self.ratios_differ = False
        self.looks_at_labels = True
        self.parts = 0
        self.changed: tuple[str, ...] = ()

    @property
    def counted(self) -> float:
        return next(iter(self._counts.values()), 0.0)

    @property
    def labels_differ(self) -> bool:
        return len(set(self._ignored)) > 1

    def ratio(self, name: str, main: float, count: float, whole: Mapping[str, float] | None) -> float:
        """A loss's count to the first one's: over the whole batch where that is known, else in its first part."""
        if whole is not None and name in whole:
            return whole[name] / max(next(iter(whole.values())), 1e-300)
        here = count / max(main, 1e-300)
        ratio = self._ratios.setdefault(name, here)
        self.ratios_differ |= abs(ratio - here) > 1e-9 * ratio
        return ratio

    def labels(self, share: float | None) -> None:
        if share is None:
            self.looks_at_labels = False
        else:
            self._ignored.append(share)

    def add(self, read: dict[str, Weighed], counts: dict[str, float]) -> None:
        self.parts += 1
        for name, (value, weight) in read.items():
            total = value.detach() if weight == 1.0 else value.detach() * weight
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0.0) + counts[name]

    def _means(self) -> dict[str, torch.Tensor]:
        try:
            return {name: total / max(self._counts[name], 1e-300) for name, total in self._sums.items()}
        except RuntimeError as error:
            if not is_memory(error, self._device):
                raise
            # The step is done; not even a number fits beside it now.
            return {name: total.cpu() / max(self._counts[name], 1e-300) for name, total in self._sums.items()}

    def mean(self) -> torch.Tensor:
        means = list(self._means().values())
        return sum(means[1:], means[0]) if means else torch.zeros((), device=self._device)

    def named(self) -> dict[str, torch.Tensor] | None:
        return None if set(self._sums) <= {""} else self._means()


def is_mean(returned: Any) -> bool:
    """Whether a loss function returned means, and no sums."""
    values = returned.values() if isinstance(returned, Mapping) else [returned]
    return all(isinstance(value, torch.Tensor) for value in values)
