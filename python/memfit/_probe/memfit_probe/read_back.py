"""Detects values that the script reads from the GPU, with their types and lines.

The device sees bytes. It takes an unknown value for an integer, which may become a size, unless told
otherwise here. An unknown floating-point value is followed until something depends on it.
"""

import functools
import sys
import threading

from . import (
    asserts,
    assumed_lines,
    branches,
    channel,
    come_back,
    conditions,
    copied,
    device,
    flows,
    imports,
    math_calls,
    saved,
    unknown_floats,
    unseen_uses,
)
from .oom import frames_here, is_library, stack

# Methods of `torch.Tensor` that return values which can be followed, ...
FOLLOWED = ("item", "tolist")
# ... and those that return a CPU tensor, a plain number or a boolean, whose use cannot be seen.
UNFOLLOWED = ("cpu", "__float__", "__bool__")
# Other methods that copy from the GPU: what they copy is data, not a number.
COPYING = ("to", "type", "numpy")
# These convert any value to an integer.
INTEGERS = ("__int__", "__index__")
# The device's codes of the types, by the size of a real number.
CODES = {"float16": 1, "bfloat16": 2, "float32": 3, "float64": 4, "complex64": 3, "complex128": 4}
# Reads at one place within one step, after each of which it is reported.
REPEATED = frozenset(10**power for power in range(3, 10))
# The name of the assumption that a value affects control flow.
DECIDES = b"deciding-number"
# That a count, which has bounds, affects control flow unseen.
COUNT_DECIDES = b"deciding-count"


def arm(session):
    """Watch the methods that read values."""
    known = device.find()
    if known is not None:
        assumed_lines.arm(known)
        session.reads = Reads(session, known)
        session.reads.arm()


class Reads:
    """The methods of tensors that read values."""

    def __init__(self, session, known):
        self.session = session
        self.known = known
        torch = session.torch
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.strided = torch.strided
        self.codes = {getattr(torch, name): code for name, code in CODES.items()}
        others = session.setup["others"]
        varied = others["varied"]
        self.conditions = conditions.Conditions(session, known)
        self.files = come_back.ComeBack(self.conditions.comes_back)
        self.copied = copied.Copied(session, known, self.conditions)
        truth, of_count = self.conditions.truth, self.conditions.of_count
        number = self.conditions.number
        given = (self.files.used, number)
        self.number = unknown_floats.kind(self.decides, truth, self._untold, *given, varied)
        # Random numbers, and what is computed from counts.
        bounded = (self.decides_by_count, of_count)
        self.bounded = unknown_floats.kind(*bounded, self._untold, *given)
        self.count = unknown_floats.count_kind(self.bounded, *bounded, *given)
        kinds = {
            self.number: (self.number, self.decides),
            self.bounded: (self.bounded, self.decides_by_count),
            self.count: (self.bounded, self.decides_by_count),
        }
        self.integer = unknown_floats.integer_kind(truth)
        # A scaler's scale, which is known but for the overflows that lower it.
        self.scale = unknown_floats.kind(lambda: None, of_count, self._untold, *given)
        self.watched = math_calls.Watched(known, kinds, truth, self.conditions.check, varied)
        self.unseen = unseen_uses.Unseen()
        # Places at which the main thread read values that were assumed, and the number of these assumptions.
        self.sites, self.located = set(), 0
        # Assumed reads of each place since the last complete step, whose number comes first.
        self.step, self.repeats = 0, {}
        # A compiler depends on the types of numbers.
        self.follows = True

    def arm(self):
        tensor = self.session.torch.Tensor
        for name in (*FOLLOWED, *UNFOLLOWED, *INTEGERS):
            setattr(tensor, name, self._watched(name, getattr(tensor, name)))
        for name in COPYING:
            setattr(tensor, name, self._copying(getattr(tensor, name)))
        tensor.copy_ = self._copying_into(tensor.copy_)
        tensor.__setitem__ = self._setting(tensor.__setitem__)
        saved.arm(self)
        self.files.arm(self.decides)
        scaler = self.session.torch.amp.GradScaler
        scaler.get_scale = self._scaling(scaler.get_scale)
        self.watched.watch(self.session.torch)
        asserts.make_progress(self.session.torch)
        imports.before_compiling(self._leave)
        unknown_floats.write_in_yaml(
            (self.number, self.bounded, self.count, self.scale, self.integer), self.decides
        )

    def _leave(self):
        self.follows = False
        self.watched.leave()

    def _watched(self, name, original):
        is_compiling, known = self.session.is_compiling, self.known
        sign = -1 if name in INTEGERS else 1

        @functools.wraps(original)
        def read(tensor, *args, **kwargs):
            if type(tensor) not in self.plain or not tensor.is_cuda or is_compiling():
                result = original(tensor, *args, **kwargs)
                return self._needed(sys._getframe(1), result) if name == "__bool__" else result
            if tensor.layout is not self.strided or tensor.nbytes > copied.MAX_BYTES:
                return self.copied.large(tensor, original(tensor, *args, **kwargs))
            before, floats = known.reading(sign * self.codes.get(tensor.dtype, 0)), known.unknown_floats()
            assumed, conditions, flips = known.assumptions(), known.conditions(), known.flips()
            unknown_any = known.unknown_any()
            try:
                result = original(tensor, *args, **kwargs)
            finally:
                self._locate(known.assumptions() - assumed)
                integers = known.reading(0) != before
            if not integers and known.unknown_floats() != floats:
                return self._unknown(name, result)
            if integers and name in FOLLOWED and self.follows:
                self.files.read(self.decides)
                return self._whole(result)
            if integers or known.assumptions() == assumed:
                if integers and type(result) is not bool:
                    return self._instead(result)
                if type(result) is bool:
                    result = self.conditions.check(result, sys._getframe(1), branches.is_check)
                return self._needed(sys._getframe(1), result) if name == "__bool__" else result
            if type(result) is not bool:
                return self._counted(name, result)
            holds = asserts.holds(sys._getframe(1)) if name == "__bool__" else None
            if holds is not None:
                return holds
            if known.conditions() == conditions:
                self.decides_by_count()
                return self.conditions.check(result, sys._getframe(1), branches.is_check)
            # What the device would have answered, had it not inverted the condition.
            truth = result != (known.flips() != flips)
            if known.unknown_any() != unknown_any:
                truth = truth or branches.works_if(sys._getframe(1))
            return self.conditions.truth(truth)

        return read

    def _needed(self, frame, truth):
        """Return the truth of a condition that is known, but may follow from the values that a further run
        assumes: a check before an error holds there as it did in the first run.
        """
        others = self.session.setup["others"]
        is_first = others["number"] is None and others["conditions"] is None
        if is_first or self.session.is_compiling():
            return truth
        holds = asserts.holds(frame)
        return truth if holds is None else holds

    def _copying(self, original):
        dtype = self.session.torch.dtype

        @functools.wraps(original)
        def copy(tensor, *args, **kwargs):
            if type(tensor) not in self.plain or not tensor.is_cuda:
                return original(tensor, *args, **kwargs)
            given = [getattr(each, "dtype", each) for each in (*args, *kwargs.values())]
            kind = next((each for each in given if isinstance(each, dtype)), tensor.dtype)
            return self._copied_by(lambda: original(tensor, *args, **kwargs), tensor, kind)

        return copy

    def _copying_into(self, original):
        @functools.wraps(original)
        def copy(target, *args, **kwargs):
            source = args[0] if args else kwargs.get("other")
            if type(source) in self.plain and source.is_cuda and target.is_cpu:
                return self._copied_by(lambda: original(target, *args, **kwargs), source, target.dtype)
            return original(target, *args, **kwargs)

        return copy

    def _setting(self, original):
        @functools.wraps(original)
        def set_item(target, index, value):
            def copy():
                original(target, index, value)
                return target

            if type(value) in self.plain and value.is_cuda and target.is_cpu:
                self._copied_by(copy, value, target.dtype, is_part=True)
            else:
                original(target, index, value)

        return set_item

    def _copied_by(self, copy, tensor, dtype, is_part=False):
        """Copy a tensor from the GPU, where the copy has this type, and return the result; `is_part` if it
        is a part of that.
        """
        known = self.known
        before, floats = known.reading(self.codes.get(dtype, 0)), known.unknown_floats()
        assumed = known.assumptions()
        try:
            result = copy()
        finally:
            integers = known.reading(0) != before
        if getattr(result, "is_cuda", False) or not getattr(result, "is_cpu", True):
            # A tensor without memory, on the device `meta`, has no data.
            return result
        if not integers and known.unknown_floats() != floats:
            self.decides()
        elif not integers and known.assumptions() != assumed:
            return self._counted("cpu", result)
        elif not integers:
            return self.copied.large(tensor, result)
        return result if is_part else self._instead(result)

    def _scaling(self, original):
        @functools.wraps(original)
        def get_scale(scaler):
            scale = original(scaler)
            # Libraries skip the step of a scheduler after an overflow.
            if (
                type(scale) is not float
                or not self.follows
                or is_library(sys._getframe(1).f_code.co_filename)
            ):
                return scale
            return self.scale(scale)

        return get_scale

    def _locate(self, count):
        """Record the location of a read, and the number of assumptions that answered it."""
        if count and threading.current_thread() is threading.main_thread():
            self.located += count
            site = flows.site(frames_here())
            self.sites.add(site)
            self._repeat(site)

    def _repeat(self, site):
        """Report a place that reads assumed values again and again within one step: its loop may not end."""
        if self.step != self.session.reported:
            self.step, self.repeats = self.session.reported, {}
        count = self.repeats[site] = self.repeats.get(site, 0) + 1
        if count in REPEATED:
            frames = stack(frames_here())
            if frames:
                channel.send("repeated", place=frames[0], count=count)

    def may_reach(self, exception):
        """Return `False` if no assumed value can have reached the statement that raised an exception."""
        if self.copied.sites and flows.may_reach(self.copied.sites, exception.__traceback__):
            return True
        if self.known.assumptions() != self.located:
            # Some were read in ways that are not watched.
            return True
        return flows.may_reach(self.sites, exception.__traceback__)

    def _counted(self, name, result):
        """Follow numbers with bounds that the script reads, or record that it may decide on them unseen."""
        if name in FOLLOWED and self.follows:
            self.files.read(self.decides_by_count)
            if self.unseen.any():
                self.decides_by_count()
            return self._followed(result, self.bounded)
        self.decides_by_count()
        return self._instead(result, result) if type(result) in (int, float) else result

    def _unknown(self, name, result):
        """Wrap or report unknown values that the script reads."""
        if name in FOLLOWED and self.follows:
            self.files.read(self.decides)
            if self.unseen.any():
                self.decides()
            return self._followed(result, self.number)
        if name in (*FOLLOWED, *UNFOLLOWED):
            self.decides()
        return self._instead(result)

    def _instead(self, result, upper=None):
        """Return what the script reads where its use cannot be seen, or in a run that inverts a condition on
        it, a number that the script compares it with. `upper` is the bound of a count.
        """
        if type(result) in (int, float):
            return self.conditions.number(result, upper)
        return self.copied.instead(result)

    def _followed(self, result, kind):
        if type(result) is list:
            return [self._followed(each, kind) for each in result]
        if type(result) is float:
            if kind is self.number and self.conditions.filed is not None:
                return kind.of(self.conditions.filed, result)
            replaced = kind is self.number and self.session.setup["others"]["number"] is not None
            return kind.of(result, 0.0) if replaced else kind(result)
        return self.count(result) if type(result) is int else result

    def _whole(self, result):
        """Follow unknown integers that the script reads."""
        if type(result) is list:
            return [self._whole(each) for each in result]
        if type(result) is not int:
            return result
        return self.integer(self.conditions.number(result, only_lookups=True))

    def _untold(self, function, args, named):
        with self.session.torch._C.DisableTorchFunctionSubclass():
            return function(*args, **named)

    def decides(self):
        """Count that something depends on an unknown value."""
        self.known.assumed(DECIDES)

    def decides_by_count(self):
        """Count that something may depend on an unknown count."""
        self.known.assumed(COUNT_DECIDES)
