"""Floating-point numbers that nobody computed, on the host.

Most scripts read their loss only to print it, or to add it up for a mean that is printed: that depends on
nothing. So such a number is followed: what is computed of it is unknown too, and the moment at which it
becomes an integer or is compared is told with its line. Functions of `math` and of numpy give plain numbers,
which nobody follows.
"""

import math

# Operators that give another such number.
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
UNARY = ("neg", "pos", "abs")
# What makes an integer of it, or a plain number.
CONVERSIONS = ("int", "trunc", "floor", "ceil", "float", "bool")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def plain(number):
    """The number itself."""
    return float.__add__(number, 0.0)


def kind(decides):
    """The type of such numbers; `decides` is called where something depends on one."""

    class UnknownFloat(float):
        """A number that the virtual card answered, and nobody computed."""

        __slots__ = ()
        __hash__ = float.__hash__

        def __round__(self, digits=None):
            if digits is not None:
                return UnknownFloat(float.__round__(self, digits))
            decides()
            return float.__round__(self)

        def __divmod__(self, other):
            parts = float.__divmod__(self, other)
            return parts if parts is NotImplemented else tuple(map(UnknownFloat, parts))

        def is_integer(self):
            decides()
            return float.is_integer(self)

        def as_integer_ratio(self):
            decides()
            return float.as_integer_ratio(self)

        def __copy__(self):
            return self

        def __deepcopy__(self, memo):
            return self

        def __reduce_ex__(self, protocol):
            # In a file it is a number like any other.
            return float, (plain(self),)

    def followed(name):
        original = getattr(float, name)

        def operator(self, *others):
            result = original(self, *others)
            return UnknownFloat(result) if type(result) is float else result

        return operator

    def conversion(name):
        original = getattr(float, name)

        def convert(self):
            decides()
            return original(self)

        return convert

    def comparison(name):
        original = getattr(float, name)

        def compare(self, other):
            # Whether it is a finite number is a test that a correct script passes.
            if other is not self and not (isinstance(other, float) and math.isinf(other)):
                decides()
            return original(self, other)

        return compare

    binary = [f"__{side}{name}__" for name in ARITHMETIC for side in ("", "r")]
    for name in (*binary, *(f"__{name}__" for name in UNARY)):
        setattr(UnknownFloat, name, followed(name))
    for name in CONVERSIONS:
        setattr(UnknownFloat, f"__{name}__", conversion(f"__{name}__"))
    for name in COMPARISONS:
        setattr(UnknownFloat, f"__{name}__", comparison(f"__{name}__"))
    return UnknownFloat
