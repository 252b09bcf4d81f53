"""Functions of `math`, and constructors of PyTorch, that read unknown numbers without asking them.

The functions of `math` are replaced before the script imports them by name, and before PyTorch's compilers
list them.
"""

import functools
import math

# Correct scripts pass a check for finite values.
CHECKS = ("isfinite", "isinf", "isnan")
# Functions of PyTorch that make tensors on the host of numbers.
CONSTRUCTORS = ("tensor", "as_tensor")
# Depth of the lists in which unknown numbers are looked for.
DEPTH = 2
# Answers a call of a function, once PyTorch is watched.
_answer = None


def arm():
    """Replace the functions of `math`."""
    for name, function in list(vars(math).items()):
        if callable(function) and not name.startswith("_") and name not in CHECKS:
            setattr(math, name, _replaced(function))


def _replaced(original):
    @functools.wraps(original)
    def function(*values, **named):
        if _answer is None:
            return original(*values, **named)
        return _answer(original, values, named)

    return function


class Watched:
    """Calls with unknown numbers among their arguments."""

    def __init__(self, known, kinds, decides, condition):
        self.known, self.kinds, self.decides, self.condition = known, kinds, decides, condition
        self.originals = []

    def watch(self, torch):
        """Follow the calls from now on."""
        global _answer
        _answer = self._answer
        for name in CONSTRUCTORS:
            original = getattr(torch, name)
            self.originals.append((torch, name, original))
            made = self._deciding(original)
            setattr(torch, name, made)
            # TorchScript knows functions by their identity.
            torch.jit._builtins._register_builtin(made, f"aten::{name}")

    def leave(self):
        """Put the constructors back: a compiler knows them, not these."""
        for module, name, original in self.originals:
            setattr(module, name, original)
        self.originals = []

    def _has(self, values, depth=DEPTH):
        """Return `True` if a value, or one in its lists, is unknown."""
        return any(
            type(each) in self.kinds or (type(each) in (list, tuple) and depth and self._has(each, depth - 1))
            for each in values
        )

    def _answer(self, original, values, named):
        # An iterator can be read only once.
        values = tuple(list(each) if hasattr(each, "__next__") else each for each in values)
        before = self.known.unknown_floats()

        def is_unknown():
            return self._has(values) or self.known.unknown_floats() != before

        try:
            result = original(*values, **named)
        except ValueError:
            # The value is zero, of which there is no logarithm: scripts compute signal-to-noise ratios.
            if not is_unknown():
                raise
            result = 0.0
        return self._followed(result) if is_unknown() else result

    def _followed(self, result):
        if type(result) is tuple:
            return tuple(map(self._followed, result))
        if type(result) is float:
            return self.kinds[0](result)
        self.decides()
        return self.condition(result) if type(result) is bool else result

    def _deciding(self, original):
        @functools.wraps(original)
        def make(*values, **named):
            if self._has((*values, named.get("data"))):
                self.decides()
            return original(*values, **named)

        return make
