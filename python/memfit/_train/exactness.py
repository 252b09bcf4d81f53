"""What a step does otherwise than its owner may expect, apart from dividing a batch; each is said once."""

from __future__ import annotations

from memfit._levers.saying import Once

from .division import ChangesTraining


class Exactness:
    """What was found so far."""

    def __init__(self) -> None:
        self._once = Once()

    def edited(self) -> tuple[str, ...]:
        """The model or the loss wrote into the batch."""
        return self._once.warn(
            "the model or the loss writes into the batch in place, so a second attempt would see another one; from here on each "
            "part is copied first",
            ChangesTraining,
        )

    def ratios(self) -> tuple[str, ...]:
        """Several losses, each with a count of its own that is another one in each run."""
        return self._once.warn(
            "the losses have counts whose ratio differs from part to part, and is not known of the whole window, so they are not "
            "weighed as the means over all of it; pass `count=`, a function from a batch to the counts by name",
            ChangesTraining,
        )

    def weighed_again(self) -> None:
        """A window of several losses was run for nothing but what they count."""
        self._once.warn(
            "the losses have counts whose ratio differs from part to part, so their means over the whole window are not known "
            "before it ran: such windows are run twice, the second time with what all of it counts; pass `count=`, a function "
            "from a batch to the counts by name, which spares that with one batch a window"
        )
