"""Numbers computed over a batch that decide something in a forward pass: they are compared with a threshold,
or read by the script.

A micro-batch has other such numbers than the whole batch, but a few samples only show a difference if the
numbers are on different sides of the threshold. So what hangs on them is measured: with another result of
the comparison, or another number read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# Operations with a kink. Their gradient is the same on either side of it as long as no number passes it.
KINKS = frozenset(
    ["abs", "clamp", "clamp_max", "clamp_min", "hardtanh", "leaky_relu", "maximum", "minimum", "relu"]
)
# More values than this belong to samples, or are too many to keep.
_MAX_VALUES = 4096
# Relative difference below which two numbers are equal, by data type.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE_TOLERANCE = 2e-2


class Decision(NamedTuple):
    """An operation whose result the script may branch on, and the numbers that decide its result."""

    name: str
    value: torch.Tensor


class Decisions:
    """The decisions of a whole batch's forward pass, and those of micro-batches with numbers of their own."""

    def __init__(self) -> None:
        self.whole: list[Decision] = []
        # Positions of the decisions, by the start and end of the micro-batch.
        self._own: dict[tuple[int, int], set[int]] = {}
        # An operation with a kink that is applied to several numbers of the batch.
        self.kink = ""

    def __bool__(self) -> bool:
        return bool(self._own)

    def is_own(self, samples: tuple[int, int, int] | None, place: int) -> bool:
        """Return `True` if a micro-batch's own numbers decide there."""
        return samples is not None and place in self._own.get(samples[:2], ())

    def compare(self, samples: tuple[int, int, int], found: list[Decision]) -> None:
        """Compare a micro-batch's decisions with those of the whole batch. If there are fewer, a loop over
        samples makes them. A micro-batch's numbers are those of its samples if the whole batch has them, too.
        """
        start, stop, items = samples
        if stop - start == items:
            return
        same_path = [each.name for each in found] == [each.name for each in self.whole]
        for place, decision in enumerate(found):
            if same_path:
                # Another shape means that each sample has its own numbers.
                known = [self.whole[place].value]
                is_number = known[0].shape == decision.value.shape
            else:
                known = [each.value for each in self.whole if each.name == decision.name]
                is_number = decision.value.numel() == 1
            if not is_number or _is_among(decision.value, known):
                continue
            if decision.name not in KINKS:
                self._own.setdefault((start, stop), set()).add(place)
            elif decision.value.numel() > 1:
                # A kink in a single number is found in the loss's graph.
                self.kink = decision.name


def decision(name: str, args: tuple[object, ...]) -> Decision | None:
    """Return the decision that an operation makes, if it is one about few numbers."""
    one, other = args[0], args[1] if len(args) > 1 else None
    if not isinstance(one, torch.Tensor) or not one.dtype.is_floating_point:
        return None
    if isinstance(other, torch.Tensor) and max(one.numel(), other.numel()) > _MAX_VALUES:
        return None
    if one.numel() > _MAX_VALUES:
        return None
    value = one.detach().clone() if other is None else one.detach() - other
    return Decision(name, value)


def _is_among(found: torch.Tensor, known: list[torch.Tensor]) -> bool:
    """Return `True` if all numbers are among the known ones, but for rounding."""
    if not known or not found.numel():
        return bool(known)
    values, places = found.flatten(), torch.cat([each.flatten() for each in known]).sort().values
    after = torch.searchsorted(places, values).clamp(max=len(places) - 1)
    tolerance = _TOLERANCES.get(found.dtype, _COARSE_TOLERANCE)
    close = [
        torch.isclose(values, places[near], tolerance, tolerance, equal_nan=True)
        for near in (after, (after - 1).clamp(min=0))
    ]
    return bool((close[0] | close[1]).all())
