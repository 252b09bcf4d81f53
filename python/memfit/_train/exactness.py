"""Whether training on parts is training on the whole."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


class ChangesTraining(UserWarning):
    """A step does not compute what the whole batch would."""


class Exactness:
    """What was found that differs, each of which is said once."""

    def __init__(self, model: nn.Module) -> None:
        self._said: set[str] = set()
        self._norms = [
            name or type(module).__name__
            for name, module in model.named_modules()
            if isinstance(module, _BATCH_NORM) and not isinstance(module, nn.SyncBatchNorm)
        ]
        self._modules = dict(model.named_modules())
        self.tried_coupling = False
        self._coupled = False

    def of_parts(self, stateful: Iterable[str]) -> tuple[str, ...]:
        """What differs in a batch that was run in several parts."""
        found = []
        training = [name for name in self._norms if self._modules.get(name, nn.Identity()).training]
        if training:
            found.append(
                f"batch normalisation in training mode ({_some(training)}) takes its statistics from each part and not "
                "from the whole batch; GroupNorm, or `.eval()` on these modules, does not depend on it"
            )
        norms = tuple(f"{name}." for name in self._norms)
        others = [name for name in stateful if not (norms and name.startswith(norms))]
        if others:
            found.append(
                f"modules keep state that each part updates ({_some(sorted(others))}): it is updated more often than by "
                "the whole batch"
            )
        if self._coupled:
            found.append(
                "the loss couples the samples of a batch: its mean over parts is not the loss of the whole (contrastive "
                "losses, losses that normalise over the batch); give `micro_batch` the size that it was designed for"
            )
        return self._say(found)

    def edited(self) -> tuple[str, ...]:
        """The model or the loss wrote into the batch."""
        return self._say(
            [
                "the model or the loss writes into the batch in place, so a second attempt would see another one; from "
                "here on each part is copied first"
            ]
        )

    def uncounted(self) -> tuple[str, ...]:
        """Parts whose ignored labels differ, with a mean that memfit has to weigh by samples."""
        return self._say(
            [
                "labels of -100 are ignored, and their number differs from part to part, but the loss is a mean: parts "
                "are weighed by their samples, which is not the mean over the whole; return `(sum, count)` from the loss "
                "function, or pass `count=`"
            ]
        )

    def try_coupling(self, losses: Any) -> None:
        """Find out once whether a loss of four samples follows from those of two and two.

        `losses` computes the (sum, count) of a number of ranges without leaving a trace.
        """
        self.tried_coupling = True
        try:
            (whole, count), (first, first_count), (second, second_count) = losses()
        except Exception:
            # The user's function did not like being called so; nothing is known then.
            return
        if count <= 0 or first_count + second_count != count or not math.isfinite(whole):
            return
        apart = (first + second) / count
        together = whole / count
        self._coupled = abs(together - apart) > 1e-2 * (abs(together) + abs(apart)) + 1e-6

    def _say(self, found: list[str]) -> tuple[str, ...]:
        for text in found:
            if text not in self._said:
                self._said.add(text)
                warnings.warn(f"memfit: {text}", ChangesTraining, stacklevel=5)
        return tuple(found)


def ignored_labels(part: Any) -> float | None:
    """The share of labels that are ignored, for batches as Hugging Face's; None where there are none."""
    labels = part.get("labels") if hasattr(part, "get") else None
    if isinstance(labels, torch.Tensor) and labels.dim() > 1 and not labels.is_floating_point():
        return float((labels == -100).sum()) / max(labels.numel(), 1)
    return None


def _some(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )
