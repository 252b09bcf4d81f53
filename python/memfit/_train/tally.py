"""The values that a loss function returns, and their totals over a batch's micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .faults import is_memory
from .joining import join

# A loss, and the factor that turns it into a sum.
Weighed = tuple[torch.Tensor, float]


def scalar(value: torch.Tensor) -> torch.Tensor:
    """Return a loss as a tensor without dimensions."""
    if value.dim() == 0:
        return value
    if value.numel() != 1:
        raise TypeError(
            f"the loss function returned a tensor of shape {tuple(value.shape)}\n"
            "hint: return the mean of the losses, or `(losses.sum(), count)`; of a model's output its "
            "`.loss`"
        )
    return value.reshape(())


def split_metrics(returned: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """Separate the loss from metrics: of a dictionary with a `loss`, as in Lightning and Hugging Face, only
    the loss is trained on.
    """
    # The usual case first: comparing with an abstract type takes longer.
    if type(returned) is not torch.Tensor and isinstance(returned, Mapping) and "loss" in returned:
        return returned["loss"], {name: value for name, value in returned.items() if name != "loss"}
    return returned, None


def read_losses(
    returned: Any, counted: float | Mapping[str, float]
) -> tuple[dict[str, Weighed], dict[str, float]]:
    """Return each loss with the factor that turns it into a sum, and its count; `counted` is the count of a
    mean.
    """
    named = returned if isinstance(returned, Mapping) else {"": returned}
    if not named:
        raise TypeError("the loss function returned an empty dictionary, so there is no loss")
    read: dict[str, Weighed] = {}
    counts: dict[str, float] = {}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            weight = float(counted[name] if isinstance(counted, Mapping) else counted)
            read[name], counts[name] = (scalar(value), weight), weight
        elif isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.Tensor):
            read[name], counts[name] = (scalar(value[0]), 1.0), _count(value[1])
        else:
            kind = type(value).__name__
            has = f" that has a `.loss`; return {kind}.loss" if hasattr(value, "loss") else ""
            raise TypeError(f"the loss function returned {kind}{has}\n{_HINT}")
    return read, counts


def share_of(
    returned: Any,
    counted: float | Mapping[str, float],
    counts: Mapping[str, float] | None,
    *,
    sums: bool = False,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the share of a micro-batch's loss in that over all `counts`, or over its own without them, and
    the count of each loss. With `sums`, the losses of micro-batches are added as they are.
    """
    losses, own = read_losses(split_metrics(returned)[0], counted)
    share: torch.Tensor | None = None
    for name, (value, weight) in losses.items():
        total = own[name] if counts is None else counts.get(name, 0.0)
        factor = 1.0 if sums else weight / total if total and own[name] else 0.0
        share = value * factor if share is None else share + value * factor
    assert share is not None
    return share, own


_HINT = (
    "hint: return a mean, `(sum, count)`, or a dictionary of these; to return metrics as well, name the loss "
    '"loss": `{"loss": loss, "accuracy": accuracy}`'
)


def refuse_share(returned: Any, samples: int) -> None:
    """Refuse a loss paired with a fraction (an accuracy, say), which would be taken for a sum and
    its count.
    """
    for value in returned.values() if isinstance(returned, Mapping) else (returned,):
        if not isinstance(value, (tuple, list)) or len(value) != 2 or samples < 2:
            continue
        count = value[1]
        is_float = (
            count.dtype.is_floating_point if isinstance(count, torch.Tensor) else isinstance(count, float)
        )
        if is_float and 0.0 < float(count) < 1.0:
            raise TypeError(
                f"the loss function returned a loss and {float(count):.3g} for {samples} samples: is this a "
                "sum and its count, or a loss and a metric?\n"
                f"{_HINT}; a count of one may be returned as `int`"
            )


def _count(value: Any) -> float:
    """Return the count of a sum."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise TypeError(
                f"the loss function returned a loss and a tensor of shape {tuple(value.shape)}, which is not "
                "a count\n"
                f"{_HINT}"
            )
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"the loss function returned a loss and {type(value).__name__}, which is not a count\n{_HINT}"
        )
    return float(value)


class Tally:
    """The totals of a batch's micro-batches.

    Stores the micro-batches' shares of the window's loss, which exist anyway. They are added on demand, since
    most steps' losses are never read.
    """

    __slots__ = ("_counts", "_device", "_metrics", "_shares", "changed", "means", "parts")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Each loss's shares with the factors that turn them into sums, and its count.
        self._shares: dict[str, list[Weighed]] = {}
        self._counts: dict[str, float] = {}
        # Metrics of the micro-batches, with their numbers of samples.
        self._metrics: list[tuple[int, Mapping[str, Any]]] = []
        self.parts = 0
        self.changed: tuple[str, ...] = ()
        # The means over all ranks' samples, if ranks share the batch.
        self.means: dict[str, torch.Tensor] | None = None

    def add(self, name: str, share: torch.Tensor, back: float, count: float) -> None:
        """Add a loss's share, with the factor that turns it into a sum over `count`."""
        shares = self._shares.get(name)
        if shares is None:
            self._shares[name], self._counts[name] = [(share, back)], count
        else:
            shares.append((share, back))
            self._counts[name] += count

    def add_metrics(self, samples: int, metrics: Mapping[str, Any]) -> None:
        """Add a micro-batch's metrics."""
        kept = {
            name: value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in metrics.items()
        }
        self._metrics.append((samples, kept))

    def metrics(self) -> dict[str, Any]:
        """Return the metrics: numbers averaged over samples, everything else concatenated."""
        sizes = [samples for samples, _ in self._metrics]
        found: dict[str, Any] = {}
        for name in self._metrics[0][1] if self._metrics else ():
            values = [each[name] for _, each in self._metrics]
            if all(_is_number(value) for value in values):
                shares = [value * (size / sum(sizes)) for value, size in zip(values, sizes, strict=True)]
                found[name] = sum(shares[1:], shares[0])
            else:
                found[name] = join(values, sizes)
        return found

    def sums(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return each loss's sum and count."""
        found = {}
        for name in sorted(self._shares):
            total = sum(
                (share * back for share, back in self._shares[name]), torch.zeros((), device=self._device)
            )
            found[name] = (total, torch.full_like(total, self._counts[name]))
        return found

    def _means(self) -> dict[str, torch.Tensor]:
        if self.means is not None:
            return self.means
        try:
            return {name: self._mean(name, shares) for name, shares in self._shares.items()}
        except RuntimeError as error:
            if not is_memory(error, self._device):
                raise
        # The step is done, but not even a scalar fits on the device now.
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


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    return isinstance(value, (int, float)) and not isinstance(value, bool)
