"""Functions of `math`, and constructors of PyTorch, that read unknown numbers without asking them.

The functions of `math` are replaced before the script imports them by name, and before PyTorch's compilers
list them.
"""

import functools
import math
import sys

from . import unknown_floats

# Checks for finite values: correct scripts pass one, but may do more than to stop where it fails.
CHECKS = ("isfinite", "isinf", "isnan")
# Functions of PyTorch that make tensors of numbers.
CONSTRUCTORS = ("tensor", "as_tensor", "scalar_tensor", "full", "full_like")
# Those whose numbers decide how long the tensor is. A count is its own bound there, as in every size.
RANGES = ("arange", "linspace", "logspace")
# Depth of the lists in which unknown numbers are looked for.
DEPTH = 2
# Answers a call of a function, and the result of a check, once PyTorch is watched.
_answer, _check = None, None


def arm():
    """Replace the functions of `math`."""
    for name, function in list(vars(math).items()):
        if callable(function) and not name.startswith("_"):
            setattr(math, name, _checked(function) if name in CHECKS else _replaced(function))


def _checked(original):
    @functools.wraps(original)
    def check(*values):
        result = original(*values)
        if _check is not None and values and isinstance(values[0], unknown_floats.Followed):
            return _check(result, sys._getframe(1))
        return result

    return check


def _replaced(original):
    @functools.wraps(original)
    def function(*values, **named):
        if _answer is None:
            return original(*values, **named)
        return _answer(original, values, named)

    return function


class Watched:
    """Calls with unknown numbers among their arguments."""

    def __init__(self, known, kinds, condition, check, varied):
        """`kinds` holds for each type of unknown numbers the type of floating-point results and the function
        to call when something depends on one; those of numbers that the device does not know come first.
        Where the numbers are `varied`, conditions follow from them. `check` is given the result of a check
        for finite values and the frame that evaluates it, and may replace it.
        """
        self.known, self.kinds, self.condition, self.check = known, kinds, condition, check
        self.varied, self.originals = varied, []

    def watch(self, torch):
        """Follow the calls from now on."""
        global _answer, _check
        # Not imported by processes that do not import PyTorch.
        from . import factorizations

        _answer, _check = self._answer, self.check
        for name in (*CONSTRUCTORS, *RANGES):
            original = getattr(torch, name)
            self.originals.append((torch, name, original))
            made = self._deciding(original, float if name in RANGES else object)
            setattr(torch, name, made)
            # TorchScript knows functions by their identity.
            torch.jit._builtins._register_builtin(made, f"aten::{name}")
        self.originals += factorizations.watch(torch, self.known)

    def leave(self):
        """Put the constructors back: a compiler knows them, not these."""
        for module, name, original in self.originals:
            setattr(module, name, original)
        self.originals = []

    def _kind(self, values, depth=DEPTH):
        """Return the entry of `kinds` for the unknown numbers among values and in their lists, or `None`."""
        found = [self.kinds[type(each)] for each in values if type(each) in self.kinds]
        if depth:
            inner = (self._kind(each, depth - 1) for each in values if type(each) in (list, tuple))
            found += [each for each in inner if each is not None]
        # A number with bounds asks for runs with other bounds.
        return found[-1] if found else None

    def _answer(self, original, values, named):
        # An iterator can be read only once. Its type is asked: an object may fail for a name that it lacks.
        values = tuple(list(each) if hasattr(type(each), "__next__") else each for each in values)
        before = self.known.unknown_floats()

        def kind():
            found = self._kind(values)
            unknown = self.known.unknown_floats() != before
            return next(iter(self.kinds.values())) if found is None and unknown else found

        def called(values):
            try:
                return original(*values, **named)
            except ValueError:
                # The value is zero, of which there is no logarithm: scripts compute signal-to-noise ratios.
                if kind() is None:
                    raise
                return 0.0

        result = called(values)
        found = kind()
        if found is None:
            return result
        first = result if self.varied else called(unknown_floats.first(values))
        return self._followed(result, first, *found)

    def _followed(self, result, first, floats, decides):
        if type(result) is tuple:
            return tuple(self._followed(*each, floats, decides) for each in zip(result, first, strict=True))
        if type(result) is float:
            return floats.of(result, first)
        decides()
        return self.condition(first) if type(result) is bool else result

    def _deciding(self, original, kind):
        @functools.wraps(original)
        def make(*values, **named):
            given = (*values, *named.values()) if kind is float else (*values, named.get("data"))
            found = self._kind([each for each in given if isinstance(each, kind)])
            if found is not None:
                _, decides = found
                decides()
            return original(*values, **named)

        return make
