"""Logarithms of values that the virtual GPU returned without computing them.

Such a value is zero, of which there is no logarithm, and scripts compute the signal-to-noise ratio of images
from one. The functions are replaced before the script imports them by name.
"""

import functools
import math

NAMES = ("log", "log2", "log10")
# The types of values that the script computed.
KNOWN = (int, float)
# The function that computes the logarithm of any other value, once PyTorch is watched.
_of_unknown = None


def arm():
    """Replace the functions of `math`."""
    for name in NAMES:
        setattr(math, name, _replaced(getattr(math, name)))


def follow(known, number):
    """Return an unknown `number` for the logarithm of an unknown value from now on; `known` is the device."""
    global _of_unknown

    def of_unknown(original, value, *base):
        before = known.unknown_floats()

        def is_unknown():
            return isinstance(value, number) or known.unknown_floats() != before

        try:
            result = original(value, *base)
        except ValueError:
            if not is_unknown():
                raise
            result = 0.0
        return number(result) if is_unknown() else result

    _of_unknown = of_unknown


def _replaced(original):
    @functools.wraps(original)
    def logarithm(value, *base):
        if _of_unknown is None or type(value) in KNOWN:
            return original(value, *base)
        return _of_unknown(original, value, *base)

    return logarithm
