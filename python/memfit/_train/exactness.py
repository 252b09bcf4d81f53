"""Whether training on parts is training on the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from memfit._levers.coupling import Mixing
from memfit._levers.saying import warn
from memfit._levers.taking import Taken

from .batches import visit

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


class ChangesTraining(UserWarning):
    """A step does not compute what the whole batch would."""


class Exactness:
    """What was found that differs, each of which is said once."""

    def __init__(self, model: nn.Module) -> None:
        self._said: set[str] = set()
        norms = {
            name or type(module).__name__: module
            for name, module in model.named_modules()
            if isinstance(module, _BATCH_NORM) and not isinstance(module, nn.SyncBatchNorm)
        }
        self._norms, self._normalising = list(norms), list(norms.values())
        # What the last answer was given to, and that answer: it is asked for in every step.
        self._asked: tuple[Any, ...] | None = None
        self._answer: tuple[str, ...] = ()
        self._compiled = any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
            for module in model.modules()
        )
        self._watched = False
        self.coupled = False
        # What of the batch the loss is, where that is no mean.
        self.taken: Taken | None = None
        # Tensors of a batch that are labels, by their place, and the label that is ignored.
        self.labels: list[tuple[int, int]] = []

    @property
    def normalises(self) -> bool:
        """Whether statistics are taken over a part, of which one sample has none."""
        return bool(self._norms)

    def of_parts(self, stateful: set[str]) -> tuple[str, ...]:
        """What differs in a batch that was run in several parts; of buffers that changed there are only ever
        more.
        """
        training = [module.training for module in self._normalising]
        asked = training, len(stateful), self.coupled, self.taken
        if asked != self._asked:
            self._asked, self._answer = asked, self._of_parts(training, stateful)
        return self._answer

    def _of_parts(self, trains: list[bool], stateful: set[str]) -> tuple[str, ...]:
        found = []
        training = [name for name, one in zip(self._norms, trains, strict=True) if one]
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
        if self.coupled:
            found.append(
                "the loss couples the samples of a batch: its mean over parts is not the loss of the whole (contrastive "
                "losses, losses that normalise over the batch); give `micro_batch` the size that it was designed for"
            )
        elif self.taken is Taken.SUM:
            found.append(
                "the loss is a sum over samples and is taken for a mean over them: in parts it comes out smaller by as many; "
                "return `(sum, count)`, which trains with the mean (and a learning rate for it), or the mean itself"
            )
        elif self.taken is Taken.OTHER:
            found.append(
                "the loss is no mean over samples: it is weighed by classes or by a mask, leaves some labels out, or is a root, a "
                "product or a quotient of what was taken over the batch, so that its mean over parts is not the loss of the "
                "whole; return `(sum, count)`, pass `count=`, or give `micro_batch` the size that it was designed for"
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
                "labels are ignored, and their number differs from part to part, but the loss is a mean: parts "
                "are weighed by their samples, which is not the mean over the whole; return `(sum, count)` from the loss "
                "function, or pass `count=`"
            ]
        )

    def watch_coupling(self, part: Any, items: int) -> Watched | None:
        """Watches the forward of one part, the first of a batch that is run in several; None where it was
        done.
        """
        if self._watched or torch.compiler.is_compiling() or self._compiled:
            return None
        self._watched = True
        inputs: list[torch.Tensor] = []
        visit(part, inputs.append)
        mixing = Mixing(inputs, items)
        return Watched(self, mixing)

    def ratios(self) -> tuple[str, ...]:
        """Several losses, each with a count of its own that is another one in each run."""
        return self._say(
            [
                "the losses have counts whose ratio differs from part to part, and is not known of the whole window, so they "
                "are not weighed as the means over all of it; pass `count=`, a function from a batch to the counts by name"
            ]
        )

    def weighed_again(self) -> None:
        """A window of several losses was run for nothing but what they count."""
        text = (
            "the losses have counts whose ratio differs from part to part, so their means over the whole window are not "
            "known before it ran: such windows are run twice, the second time with what all of it counts; pass `count=`, a "
            "function from a batch to the counts by name, which spares that with one batch a window"
        )
        if text not in self._said:
            self._said.add(text)
            warn(text)

    def _say(self, found: list[str]) -> tuple[str, ...]:
        for text in found:
            if text not in self._said:
                self._said.add(text)
                warn(text, ChangesTraining)
        return tuple(found)


def _some(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )


class Watched:
    """Runs a forward under a `Mixing`, and keeps what it found."""

    def __init__(self, exactness: Exactness, mixing: Mixing) -> None:
        self._exactness = exactness
        self._mixing = mixing

    def __enter__(self) -> None:
        self._mixing.__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._mixing.__exit__(*failure)
        self._exactness.coupled |= self._mixing.coupled
        self._exactness.labels += self._mixing.labels

    def judge(self, returned: Any) -> None:
        """Look at what a loss function returned as means."""
        values = returned.values() if isinstance(returned, Mapping) else [returned]
        found = [taken for value in values if (taken := self._mixing.taken(value)) is not None]
        self._exactness.taken = max(found, default=Taken.MEAN)
