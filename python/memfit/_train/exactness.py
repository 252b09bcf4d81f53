"""Warnings about differences from the whole batch, other than those of dividing it; each is given once."""

from __future__ import annotations

from memfit._levers.saying import Once

from .division import ChangesTraining


class Exactness:
    """The warnings given so far."""

    def __init__(self) -> None:
        self._once = Once()

    def edited(self) -> tuple[str, ...]:
        """Warn that the model or the loss wrote into the batch."""
        return self._once.warn(
            "the model or the loss modifies the batch in place, so a second attempt would see a different "
            "one; from here on each micro-batch is copied first",
            ChangesTraining,
        )

    def ratios(self) -> tuple[str, ...]:
        """Warn that several losses have separate counts, which differ in each run."""
        return self._once.warn(
            "the ratio of the losses' counts differs between micro-batches and is not known for the whole "
            "window, so the losses are not averaged over all of it; pass `count=`, a function from a batch "
            "to the counts by name",
            ChangesTraining,
        )

    def weighed_again(self) -> None:
        """Warn that a window of several losses ran twice, the first time only to count."""
        self._once.warn(
            "the ratio of the losses' counts differs between micro-batches, so their means over the whole "
            "window are not known in advance: such windows run twice, the second time with the counts of the "
            "first; with one batch per window, `count=`, a function from a batch to the counts by name, "
            "avoids that"
        )
