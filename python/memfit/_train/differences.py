"""What a whole batch and its parts came to, and how far that is apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Relative differences that are rounding, by the type that was computed in.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3}
_COARSE = 5e-2
# A parameter whose gradient is smaller than this share of the largest one is compared with that share.
_NEGLIGIBLE = 1e-3
# Gradients and losses of so many times the smallest step of a number are rounding.
_ROUNDING = 10.0


@dataclass(frozen=True)
class Verification:
    """What dividing a batch changes, measured on a few of its samples."""

    equal: bool
    """Whether parts train as the whole does, within rounding."""
    samples: int
    """How many samples were compared."""
    sizes: tuple[tuple[int, ...], ...]
    """Into parts of how many samples they were divided, each way."""
    computed_in: str
    """ "float64", or the training's own precision."""
    difference: float | None = None
    """The largest relative difference of a gradient; None where none could be computed."""
    parameter: str = ""
    """The parameter that has it."""
    loss_difference: float | None = None
    """The relative difference of the loss."""
    state: tuple[str, ...] = ()
    """Buffers and other state that parts leave otherwise than the whole."""
    counters: tuple[str, ...] = ()
    """Numbers and containers in Python that parts leave otherwise than the whole."""
    why: str = ""
    """Why they are not equal, or could not be compared, in words."""
    random: str = ""
    """What was done about random numbers."""
    failed: bool = False
    """Whether it could not be compared, since the loss function ended with an error or found no room."""
    tells: bool = True
    """Whether there was a gradient to compare: one that is nothing everywhere tells nothing."""
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        ways = "; ".join(" + ".join(map(str, way)) for way in self.sizes)
        told = f"{self.samples} samples whole and as {ways}, in {self.computed_in}: "
        if self.equal:
            told += f"equal within rounding (gradients differ by {self.difference or 0.0:.1e} at most)"
        else:
            told += f"not equal: {self.why}"
        if self.counters:
            told += f"; counted once a part and not once a batch: {', '.join(f'`{name}`' for name in self.counters)}"
        return told + (f"; {self.random}" if self.random else "")


@dataclass
class Outcome:
    """What a run of some samples came to."""

    gradients: dict[str, torch.Tensor]
    loss: float
    counts: dict[str, float]
    state: dict[str, torch.Tensor]
    numbers: dict[str, Any]
    # Whether something was written to and is what it was: a running average of what has not moved yet.
    unmoved: bool


def judge(
    items: int,
    ways: tuple[tuple[int, ...], ...],
    name: str,
    whole: Outcome,
    parts: Outcome,
    coarse: bool,
) -> Verification:
    kinds = {each.dtype for each in whole.gradients.values()}
    tolerance = max([_TOLERANCES.get(kind, _COARSE) for kind in kinds], default=_TOLERANCES[torch.float64])
    if coarse or name in ("bfloat16", "float16"):
        tolerance = _COARSE
    # What is smaller is rounding of what cancels: a student beside a teacher that is its copy.
    floor = _ROUNDING * max([torch.finfo(kind).eps for kind in kinds], default=0.0)
    difference, parameter = _gradients_differ(whole.gradients, parts.gradients, floor)
    loss = _relative(whole.loss, parts.loss, floor)
    state = tuple(
        sorted(
            path
            for path in {*whole.state, *parts.state}
            if not _same(whole.state.get(path), parts.state.get(path), tolerance)
        )
    )
    counters = tuple(
        sorted(
            path
            for path in {*whole.numbers, *parts.numbers}
            if whole.numbers.get(path) != parts.numbers.get(path)
        )
    )
    found: list[str] = []
    if not difference <= tolerance:
        found.append(
            f"the gradient of `{parameter}` differs by {_share(difference)}"
            if difference == difference
            else f"the gradient of `{parameter}` is no number in parts"
        )
    if not loss <= tolerance:
        found.append(f"the loss differs by {_share(loss)}")
    if state:
        found.append(f"state is left otherwise: {_some(state)}")
    return Verification(
        not found,
        items,
        ways,
        name,
        difference,
        parameter,
        loss,
        state,
        counters,
        "; ".join(found),
        tells=not whole.unmoved
        and any(not float(each.double().norm()) <= floor for each in whole.gradients.values()),
    )


def _gradients_differ(
    whole: Mapping[str, torch.Tensor], parts: Mapping[str, torch.Tensor], floor: float
) -> tuple[float, str]:
    """The largest relative difference, and of which parameter."""
    norms = {name: float(each.double().norm()) for name, each in whole.items()}
    largest = max(norms.values(), default=0.0)
    if largest <= floor and all(float(each.double().norm()) <= floor for each in parts.values()):
        return 0.0, ""
    least = _NEGLIGIBLE * largest
    worst, where = 0.0, ""
    for name in dict.fromkeys((*whole, *parts)):
        one, other = whole.get(name), parts.get(name)
        if one is None or other is None:
            there = one if one is not None else other
            assert there is not None
            apart = float(there.double().norm())
        elif one.shape != other.shape:
            return float("inf"), name
        else:
            if one.layout is not torch.strided:
                one, other = one.to_dense(), other.to_dense()
            apart = float((one.double() - other.double()).norm())
        scale = max(norms.get(name, 0.0), least)
        share = apart / scale if scale else (0.0 if apart == 0.0 else float("inf"))
        if not share <= worst:
            worst, where = share, name
            if share != share:
                break
    return worst, where


def _relative(one: float, other: float, floor: float) -> float:
    if abs(one - other) <= floor:
        return 0.0
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def _same(one: torch.Tensor | None, other: torch.Tensor | None, tolerance: float) -> bool:
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return torch.equal(one, other)
    scale = float(one.double().norm() if not one.dtype.is_complex else one.abs().double().norm())
    apart = one - other
    return float((apart.abs() if apart.dtype.is_complex else apart).double().norm()) <= tolerance * max(
        scale, 1e-12
    )


def _share(difference: float) -> str:
    return f"{100 * difference:.3g} %" if difference < 10 else f"a factor of {1 + difference:.3g}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )
