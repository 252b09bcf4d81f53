"""The results of a whole batch and of its micro-batches, and the differences between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

import torch

from .graph import Kink

# Relative differences that count as rounding, by data type.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3}
_COARSE_TOLERANCE = 5e-2
# Counts may be sums of weights in 32 bits.
_COUNT_TOLERANCE = 1e-4
# A gradient smaller than this share of the largest one is compared relative to that share instead.
_NEGLIGIBLE_SHARE = 1e-3
# Gradients and losses below this multiple of machine epsilon are rounding.
_ROUNDING_EPSILONS = 10.0


@dataclass(frozen=True)
class Verification:
    """The effect of splitting a batch, measured on a few of its samples."""

    equal: bool
    """`True` if micro-batches give the results of the whole batch, within rounding."""
    samples: int
    """Number of samples that were compared."""
    sizes: tuple[tuple[int, ...], ...]
    """Sizes of the micro-batches, for each way of splitting."""
    computed_in: str
    """"float64", or the training's own precision."""
    difference: float | None = None
    """The largest relative difference of a gradient; `None` if none could be computed."""
    parameter: str = ""
    """The parameter with that difference."""
    loss_difference: float | None = None
    """The relative difference of the loss."""
    state: tuple[str, ...] = ()
    """Buffers and other state that differ after micro-batches."""
    counters: tuple[str, ...] = ()
    """Values in Python that differ after micro-batches: counters, averages, lengths of lists."""
    why: str = ""
    """The reason why they are not equal, or could not be compared."""
    random: str = ""
    """Treatment of random numbers in the comparison."""
    shared: tuple[str, ...] = ()
    """Random numbers that all samples of a batch share: every micro-batch draws its own."""
    overwritten: tuple[str, ...] = ()
    """Variables that hold the last micro-batch's values afterwards, and that the next batch overwrites."""
    is_sum: bool = False
    """`True` if the losses of micro-batches add up to that of the batch: it is a sum, not a mean."""
    failed: bool = False
    """`True` if there was no comparison because the loss function raised an error or ran out of memory."""
    tells: bool = True
    """`True` if there was a gradient to compare; one that is zero everywhere proves nothing."""
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        ways = "; ".join(" + ".join(map(str, way)) for way in self.sizes)
        text = f"{self.samples} samples whole and as {ways}, in {self.computed_in}: "
        if self.equal:
            text += f"equal within rounding (gradients differ by at most {self.difference or 0.0:.1e})"
        else:
            text += f"not equal: {self.why}"
        if self.counters:
            names = ", ".join(f"`{name}`" for name in self.counters)
            text += f"; updated once per micro-batch instead of once per batch: {names}"
        if self.overwritten:
            text += f"; of the last micro-batch afterwards: {_join_names(self.overwritten)}"
        return text + (f"; {self.random}" if self.random else "")


@dataclass
class Outcome:
    """The result of running some samples."""

    gradients: dict[str, torch.Tensor]
    loss: float
    counts: dict[str, float]
    state: dict[str, torch.Tensor]
    numbers: dict[str, Any]
    # Set if a tensor was written to without changing its value, such as a running average of something
    # constant.
    unmoved: bool
    # Operations with a kink on single numbers, of each forward pass.
    kinks: list[list[Kink]] = field(default_factory=list)


def judge(
    items: int,
    ways: tuple[tuple[int, ...], ...],
    name: str,
    whole: Outcome,
    parts: Outcome,
    coarse: bool,
) -> Verification:
    kinds = {each.dtype for each in whole.gradients.values()}
    tolerance = max(
        [_TOLERANCES.get(kind, _COARSE_TOLERANCE) for kind in kinds], default=_TOLERANCES[torch.float64]
    )
    if coarse or name in ("bfloat16", "float16"):
        tolerance = _COARSE_TOLERANCE
    # Smaller values are rounding errors of differences that cancel, such as a student compared with its own
    # copy as the teacher.
    floor = _ROUNDING_EPSILONS * max([torch.finfo(kind).eps for kind in kinds], default=0.0)
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
            if not _same_number(whole.numbers.get(path), parts.numbers.get(path), tolerance, floor)
        )
    )
    found: list[str] = []
    if not difference <= tolerance:
        found.append(
            f"the gradient of `{parameter}` differs by {_format_difference(difference)}"
            if difference == difference
            else f"the gradient of `{parameter}` is NaN in micro-batches"
        )
    if not loss <= tolerance:
        found.append(f"the loss differs by {_format_difference(loss)}")
    for loss_name, count in whole.counts.items():
        total = parts.counts.get(loss_name, 0.0)
        if not isclose(count, total, rel_tol=_COUNT_TOLERANCE):
            of = f" of `{loss_name}`" if loss_name else ""
            found.append(
                f"the counts{of} of micro-batches add up to {total:g}, but that of the batch is {count:g}: return "
                "them without a lower limit such as `max(count, 1)`, since a count of zero is allowed"
            )
    if state:
        found.append(f"state differs: {_join_names(state)}")
    kinked = _changed_kink(whole.kinks, parts.kinks)
    if kinked is not None:
        found.append(describe_kink(kinked.name, "a number"))
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


def loss_differs(whole: Outcome, parts: Outcome, name: str, coarse: bool) -> str:
    """Return how much two losses differ; "" if they are equal within rounding, or not a number anyway."""
    kind = {"float64": torch.float64, "float32": torch.float32}.get(name)
    tolerance = _COARSE_TOLERANCE if coarse or kind is None else _TOLERANCES[kind]
    floor = _ROUNDING_EPSILONS * torch.finfo(kind or torch.bfloat16).eps
    difference = _relative(whole.loss, parts.loss, floor)
    return "" if whole.loss != whole.loss or difference <= tolerance else _format_difference(difference)


def agreeing(one: Mapping[str, Any], other: Mapping[str, Any], is_wide: bool) -> frozenset[str]:
    """Return the names of the values in Python that are equal within rounding."""
    tolerance = _TOLERANCES[torch.float64 if is_wide else torch.float32]
    return frozenset(
        name for name in one if name in other and _same_number(one[name], other[name], tolerance, 0.0)
    )


def describe_kink(name: str, numbers: str) -> str:
    """Return why an operation with a kink makes a difference."""
    is_are, that = ("is", "that") if numbers == "a number" else ("are", "those")
    return (
        f"`{name}` is applied to {numbers} that {is_are} computed over the batch: {that} of a micro-batch can "
        "be on the other side of the kink, where the gradient differs"
    )


def _changed_kink(whole: list[list[Kink]], parts: list[list[Kink]]) -> Kink | None:
    """Return an operation with a kink whose argument differs between the whole batch and a micro-batch. If a
    forward pass has fewer of them, it is a loop over samples, each of which has its own number.
    """
    expected = [kink for one in whole for kink in one]
    for part in parts:
        for place, kink in enumerate(part):
            known = [expected[place]] if len(part) == len(expected) else expected
            if not any(each.name == kink.name and isclose(each.value, kink.value) for each in known):
                return kink
    return None


def _gradients_differ(
    whole: Mapping[str, torch.Tensor], parts: Mapping[str, torch.Tensor], floor: float
) -> tuple[float, str]:
    """Return the largest relative difference and the parameter that has it."""
    norms = {name: float(each.double().norm()) for name, each in whole.items()}
    largest = max(norms.values(), default=0.0)
    if largest <= floor and all(float(each.double().norm()) <= floor for each in parts.values()):
        return 0.0, ""
    least = _NEGLIGIBLE_SHARE * largest
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


def _same_number(one: Any, other: Any, tolerance: float, floor: float) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return isclose(one, other, rel_tol=tolerance, abs_tol=floor) or (one != one and other != other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(
            _same_number(*pair, tolerance, floor) for pair in zip(one, other, strict=True)
        )
    return type(one) is type(other) and bool(one == other)


def _relative(one: float, other: float, floor: float) -> float:
    if abs(one - other) <= floor:
        return 0.0
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def _same(one: torch.Tensor | None, other: torch.Tensor | None, tolerance: float) -> bool:
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Also infinite values, whose difference is not a number.
    if torch.equal(one, other):
        return True
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return False
    scale = float(one.double().norm() if not one.dtype.is_complex else one.abs().double().norm())
    apart = one - other
    return float((apart.abs() if apart.dtype.is_complex else apart).double().norm()) <= tolerance * max(
        scale, 1e-12
    )


def _format_difference(difference: float) -> str:
    return f"{100 * difference:.3g} %" if difference < 10 else f"a factor of {1 + difference:.3g}"


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )
