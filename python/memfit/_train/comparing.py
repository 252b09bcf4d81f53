"""Dispatch mode for a comparison: float64 arithmetic, and the same random numbers for a sample in any
micro-batch.

A whole batch and its micro-batches can only be compared if nothing but the division differs. The random
numbers of the whole batch are therefore recorded, and each micro-batch receives those of its own samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .decisions import KINKS, Decision, Decisions, decision
from .modes import Mode
from .operations import argument_name, bare_name, is_view, named_arguments, with_argument, written_by
from .variation import MISSING, Constant

_WIDE_TYPES = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# Names of the dropout probability in operations that apply dropout internally.
_DROPOUT_ARGUMENTS = ("dropout_p", "dropout")
# A run with inverted comparisons is abandoned once it takes this many times as many operations.
_MAX_OPERATION_RATIO = 20
_COLLECTIVES = ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd")
# Operations that skip missing values.
_OF_MISSING = ("isnan", "nansum", "nanmean", "nanmedian", "nan_to_num", "isfinite")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class NotComparable(Exception):  # noqa: N818
    """A whole batch and its micro-batches cannot be compared; the message says why."""


class RanksMeet(Exception):  # noqa: N818
    """Ranks exchange data inside the code to be compared, and the other ranks are not comparing."""


class Draws:
    """The random numbers of a whole batch, in the order in which they were drawn."""

    def __init__(self, items: int) -> None:
        # Number of samples in the whole batch, and of operations that it ran.
        self.items = items
        self.ran = 0
        self.recorded: list[tuple[str, list[torch.Tensor], list[Any]]] = []
        # Set if something was computed in 16 bits.
        self.coarse = False
        # Comparisons of floating-point numbers, in the order of the whole batch's forward pass: the
        # operation, its shape, and the dimension that holds the samples, if a micro-batch revealed it.
        self.masks: list[tuple[str, torch.Size, int | None]] = []
        # Constants that values of a batch may be compared with, in a mask or by a loss with `ignore_index`.
        self.constants: set[Constant] = set()
        # Set if dropout inside a kernel was turned off.
        self.fused_dropout = False
        # Random numbers that all samples share: the operations and their shapes.
        self.shared: dict[str, None] = {}
        self.decisions = Decisions()

    @property
    def turns(self) -> bool:
        """`True` if there are masks that can be inverted for one sample."""
        return any(along is not None for _, _, along in self.masks)

    @property
    def any(self) -> bool:
        """`True` if the whole batch drew random numbers."""
        return bool(self.recorded)


class Comparing(Mode):
    """Runs a whole batch, or with `samples` the micro-batch of these samples."""

    def __init__(
        self,
        draws: Draws,
        samples: tuple[int, int, int] | None,
        wide: bool,
        opposite: bool = False,
        otherwise: int = 0,
        limited: bool = False,
    ) -> None:
        super().__init__()
        # Give up once this takes far more operations than the whole batch.
        self._limited = limited
        self._draws = draws
        # Start and end of the micro-batch, and the number of samples in the whole batch.
        self._samples = samples
        self._wide = wide
        # Invert comparisons for the first sample of the whole batch.
        self._opposite = opposite
        # Decide otherwise where a micro-batch's own numbers decide: 1 for larger ones, -1 for smaller ones.
        self._otherwise = otherwise
        self._decisions: list[Decision] = []
        self._drawn = 0
        self._compared = 0
        self._ran = 0
        self._forward = True

    def end_forward(self) -> None:
        """End the forward pass; the backward pass follows."""
        self._forward = False
        if self._opposite or self._otherwise:
            return
        if self._samples is None:
            self._draws.decisions.whole = self._decisions
        else:
            self._draws.decisions.compare(self._samples, self._decisions)

    def goes_on_from(self, other: Comparing) -> None:
        """Start at the position in the random numbers where another run ended."""
        self._drawn, self._compared = other._drawn, other._compared

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        if self._samples is None and not self._opposite:
            self._draws.ran = self._ran

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace in _COLLECTIVES and _is_distributed():
            # Raised before the collective begins, so that no rank is left waiting.
            raise RanksMeet
        self._note(func, args, kwargs)
        self._ran += 1
        if self._limited and self._ran > _MAX_OPERATION_RATIO * max(self._draws.ran, 1):
            raise NotComparable("the loss function runs other operations")
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs):
            return self._draw(func, args, kwargs)
        decides = self._forward and self._decides(func, args)
        returned = self._run(func, args, kwargs)
        if self._forward and _compares_numbers(func, args):
            self._compare(func, returned)
        return self._decide_otherwise(returned) if decides else returned

    # ------------------------------------------------------------------------------------------- decisions

    def _decides(self, func: Any, args: Any) -> bool:
        """Record a decision; return `True` if it is to be another one."""
        name = bare_name(func).rstrip("_")
        is_kink = name in KINKS and torch.is_grad_enabled() and args[0].requires_grad
        if not (is_kink or name == "_local_scalar_dense" or _compares_numbers(func, args)):
            return False
        found = decision(name, args)
        if found is None:
            return False
        self._decisions.append(found)
        place = len(self._decisions) - 1
        return self._otherwise != 0 and self._draws.decisions.is_own(self._samples, place)

    def _decide_otherwise(self, returned: Any) -> Any:
        if self._ran > _MAX_OPERATION_RATIO * max(self._draws.ran, 1):
            raise NotComparable("the loss function runs other operations if a comparison has another result")
        if isinstance(returned, torch.Tensor):
            return returned.logical_not_()
        return self._otherwise * (10 * abs(returned) + 10)

    # ----------------------------------------------------------------------------------------- comparisons

    def _compare(self, func: Any, mask: torch.Tensor) -> None:
        """Record which dimension of a mask holds the samples, or invert the mask for one of them."""
        masks, place = self._draws.masks, self._compared
        self._compared += 1
        if self._opposite:
            self._turn(mask, place)
        elif self._samples is None:
            masks.append((str(func), mask.shape, None))
        elif place < len(masks) and masks[place][0] == str(func):
            name, whole, _ = masks[place]
            along = _differing_dimension(whole, mask.shape)
            if along is not None:
                masks[place] = name, whole, along

    def _turn(self, mask: torch.Tensor, place: int) -> None:
        masks = self._draws.masks
        if place >= len(masks) or self._ran > _MAX_OPERATION_RATIO * max(self._draws.ran, 1):
            raise NotComparable("the loss function runs other operations if a comparison has another result")
        _, whole, along = masks[place]
        start, _, items = self._samples or (0, 0, 0)
        if along is None or start > 0:
            return
        count = whole[along] // (items or self._draws.items)
        own = mask.narrow(along, 0, count)
        own.logical_not_()

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record constants that decide a sample's weight, and conversions to 16 bits."""
        name = bare_name(func).rstrip("_")
        if name == "_to_copy":
            self._draws.coarse |= kwargs.get("dtype") in (torch.float16, torch.bfloat16)
        elif name in _COMPARISONS and len(args) > 1 and isinstance(args[0], torch.Tensor):
            if isinstance(args[1], (int, float)) and not args[0].requires_grad:
                self._add_constant(name, float(args[1]), args[0])
            elif args[1] is args[0]:
                # `isnan` and `isfinite` compare values with themselves.
                self._add_constant(MISSING, 0.0, args[0])
        elif name in _OF_MISSING and isinstance(args[0], torch.Tensor):
            self._add_constant(MISSING, 0.0, args[0])
        else:
            for argument, value in named_arguments(func, args, kwargs):
                if argument.name == "ignore_index":
                    self._draws.constants.add(Constant("eq", float(value), None))

    def _add_constant(self, name: str, value: float, compared: torch.Tensor) -> None:
        if not compared.dtype.is_floating_point:
            self._draws.constants.add(Constant(name, value, None))
            return
        start, stop, _ = self._samples or (0, self._draws.items, 0)
        width, rest = divmod(compared.numel(), stop - start)
        if not rest:
            self._draws.constants.add(Constant(name, value, width))

    # ------------------------------------------------------------------------------------ random numbers

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        fused = argument_name(func, _DROPOUT_ARGUMENTS)
        if fused is not None:
            self._draws.fused_dropout = True
            return self._run(func, *with_argument(func, args, kwargs, fused, 0.0))
        if func is torch.ops.aten.native_dropout.default:
            return self._drop_out(args[0], float(args[1]))
        if self._samples is None:
            return self._keep(func, args, kwargs)
        kept = self._next(func, args, kwargs)
        returned = self._run(func, args, kwargs)
        for drawn, whole in zip(_written_and_returned(func, args, kwargs, returned), kept, strict=True):
            drawn.copy_(self._own_share(func, whole, drawn.shape))
        return returned

    def _keep(self, func: Any, args: Any, kwargs: Any) -> Any:
        returned = self._run(func, args, kwargs)
        drawn = [each.clone() for each in _written_and_returned(func, args, kwargs, returned)]
        self._draws.recorded.append((str(func), drawn, _scalars(func, args, kwargs)))
        return returned

    def _next(self, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Return the random numbers that the whole batch drew in this call."""
        known = self._draws.recorded
        if self._drawn >= len(known) or known[self._drawn][0] != str(func):
            raise NotComparable(
                "a micro-batch draws random numbers where the whole batch draws none, or different ones"
            )
        _, kept, scalars = known[self._drawn]
        if scalars != _scalars(func, args, kwargs):
            raise NotComparable(
                f"`{func.name()}` depends on the number of samples (a permutation of them, or the index of "
                "one), which is smaller in a micro-batch"
            )
        self._drawn += 1
        return kept

    def _own_share(self, func: Any, whole: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return the part of the recorded random numbers that belongs to this micro-batch's samples. They lie
        along the dimension whose length differs.
        """
        if whole.shape == shape:
            if whole.numel():
                self._draws.shared[f"`{func.name().removeprefix('aten::')}` of shape {list(shape)}"] = None
            return whole
        assert self._samples is not None
        start, stop, items = self._samples
        place = _differing_dimension(whole.shape, shape)
        if place is not None:
            each, rest = divmod(whole.shape[place], items)
            if not rest and shape[place] == each * (stop - start):
                return whole.narrow(place, each * start, each * (stop - start))
        raise NotComparable(
            f"`{func.name()}` draws {list(whole.shape)} random numbers for {items} samples and {list(shape)} "
            f"for {stop - start} of them, so memfit cannot tell which belong to which sample"
        )

    def _drop_out(self, given: torch.Tensor, share: float) -> Any:
        """Apply dropout with a recorded mask, and return the mask as the operation does."""
        if given.is_nested:
            raise NotComparable(
                "memfit cannot tell which of the random numbers for a jagged tensor belong to which sample"
            )
        kept = torch.ops.aten.bernoulli.p
        mask = self._draw(kept, (torch.empty(given.shape, device=given.device), 1.0 - share), {}).bool()
        scale = 0.0 if share >= 1.0 else 1.0 / (1.0 - share)
        return self._run(torch.ops.aten.mul.Tensor, (given, mask * scale), {}).to(given.dtype), mask

    # ---------------------------------------------------------------------------------------------- float64

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._wide or not _has_wide(args, kwargs) or is_view(func):
            return func(*args, **kwargs)
        written = written_by(func, args, kwargs)
        narrow: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def widen(value: Any) -> Any:
            if type(value) in (list, tuple):
                return type(value)(widen(entry) for entry in value)
            if isinstance(value, torch.Tensor) and value.dtype in _WIDE_TYPES:
                wide = value.to(_WIDE_TYPES[value.dtype])
                if any(value is each for each in written):
                    narrow[id(wide)] = (value, wide)
                return wide
            return value

        wide_args = [widen(value) for value in args]
        wide_kwargs = {
            name: _WIDE_TYPES.get(value, value) if name == "dtype" else widen(value)
            for name, value in kwargs.items()
        }
        returned = func(*wide_args, **wide_kwargs)
        for value, wide in narrow.values():
            value.copy_(wide)

        def give_back(value: Any) -> Any:
            if type(value) in (list, tuple):
                return type(value)(give_back(entry) for entry in value)
            return narrow[id(value)][0] if id(value) in narrow else value

        return give_back(returned) if narrow else returned


@contextlib.contextmanager
def widened(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Convert parameters and buffers to float64 in place, so that every reference sees the change; undo it at
    the end.
    """
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for tensor in tensors:
            # A tensor that was listed before is float64 already.
            if tensor.dtype in _WIDE_TYPES:
                narrow = tensor.data
                tensor.data = narrow.to(_WIDE_TYPES[tensor.dtype])
                before.append((tensor, narrow))
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


def wide(value: torch.Tensor) -> torch.Tensor:
    """Convert a floating-point tensor of a batch to float64; return others unchanged."""
    return value.to(_WIDE_TYPES[value.dtype]) if value.dtype in _WIDE_TYPES else value


def _written_and_returned(func: Any, args: Any, kwargs: Any, returned: Any) -> list[torch.Tensor]:
    found = written_by(func, args, kwargs)
    values = returned if isinstance(returned, (list, tuple)) else [returned]
    return found + [
        each
        for each in values
        if isinstance(each, torch.Tensor) and not any(each is known for known in found)
    ]


def _differing_dimension(one: torch.Size, other: torch.Size) -> int | None:
    """Return the only dimension in which two shapes differ, or `None`."""
    places = [place for place, (mine, yours) in enumerate(zip(one, other, strict=False)) if mine != yours]
    return places[0] if len(one) == len(other) and len(places) == 1 else None


def _has_wide(args: Any, kwargs: Any) -> bool:
    for value in (*args, *kwargs.values()):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, torch.Tensor) and each.dtype in (torch.float64, torch.complex128):
                return True
    return False


def _draws_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Return `True` if an operation that may draw random numbers is called with dropout or training turned
    off.
    """
    given = {argument.name: value for argument, value in named_arguments(func, args, kwargs)}
    if any(name in given and not given[name] for name in ("train", "training")):
        return True
    fused = argument_name(func, _DROPOUT_ARGUMENTS)
    return fused is not None and not given.get(fused, 0.0)


def _is_distributed() -> bool:
    distributed = torch.distributed
    return bool(
        distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    )


def _compares_numbers(func: Any, args: Any) -> bool:
    """Return `True` if an operation compares floating-point numbers. Comparisons with infinity, or of a
    tensor with itself (a NaN check), do not count, since a training run has neither infinite values nor NaN.
    """
    if bare_name(func) not in _COMPARISONS or len(args) < 2 or args[0] is args[1]:
        return False
    if isinstance(args[1], float) and args[1] in (float("inf"), float("-inf")):
        return False
    return isinstance(args[0], torch.Tensor) and args[0].dtype.is_floating_point


def _scalars(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the numeric arguments of an operation: how many values it draws, and from what range."""
    numbers = [
        value
        for _, value in named_arguments(func, args, kwargs)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    drawn_from = [
        value.shape[-1]
        for value in args[:1]
        if "multinomial" in func.name() and isinstance(value, torch.Tensor)
    ]
    return numbers + drawn_from
