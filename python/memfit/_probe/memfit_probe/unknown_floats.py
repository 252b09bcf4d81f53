"""Unknown numbers on the host: floating-point values, and counts that have bounds.

Most scripts read their loss only to print it, or to sum it for a printed mean, so nothing depends on it. Such
a value is therefore followed: results computed from it are unknown, too, and its line is reported when it
becomes an integer, a number of numpy's or a tensor, or is compared. Functions of `math` and PyTorch's
constructors read the value without asking it, so those are watched (`math_calls`); PyTorch's other functions
ask `__torch_function__`. Texts and pickles are not followed, but it is known which are only shown or saved
(`shown_texts`), and which are made unseen (`unseen_uses`).
"""

import math
import sys

from . import imports

# Operators whose result is followed.
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
# Those of which the other operand is the divisor.
DIVISIONS = ("__truediv__", "__floordiv__", "__mod__")
UNARY = ("neg", "pos", "abs")
# Those of integers alone.
BITWISE = ("and", "or", "xor", "lshift", "rshift")
# Conversions to an integer or a plain number.
CONVERSIONS = ("int", "trunc", "floor", "ceil", "float", "bool")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


# Depth of the lists in which a function of PyTorch may find such values.
DEPTH = 3


def plain(number):
    """Return the value as a plain float."""
    return float.__add__(number, 0.0)


def _plainly(value, kind, depth=DEPTH):
    """Return a value with plain floats in place of those of this kind."""
    if type(value) is kind:
        return plain(value)
    if type(value) in (list, tuple) and depth:
        return type(value)(_plainly(each, kind, depth - 1) for each in value)
    return value


class Followed(float):
    """A number that is followed, with what it was in the first run, if that differs."""

    __slots__ = ("first",)


def first(value, depth=DEPTH):
    """Return what a number, or each number of a list, was in the first run."""
    if isinstance(value, Followed):
        return getattr(value, "first", plain(value))
    if type(value) in (list, tuple) and depth:
        return type(value)(first(each, depth - 1) for each in value)
    return value


def follow_copies(number, plain_kind, decides, used, instead):
    """Let texts and pickles of a type's numbers, which hold plain ones, call `decides`, unless they are only
    shown or saved; `used` is told how each is used. A key of a dictionary decides, too. A text may be that of
    another number, `instead`.
    """
    # Not imported by processes that have no such numbers.
    from . import shown_texts

    def noticed(name):
        original = getattr(plain_kind, name)

        def convert(self, *args):
            use = shown_texts.use_of_text(sys._getframe(1))
            used(use)
            if use is not shown_texts.OTHER:
                return original(self, *args)
            decides()
            return original(instead(plain_kind.__pos__(self)), *args)

        setattr(number, name, convert)

    for name in ("__format__", "__repr__", "__str__"):
        noticed(name)

    def reduced(self, protocol):
        if shown_texts.use_of_pickle(sys._getframe(1)) is shown_texts.OTHER:
            decides()
        used(shown_texts.SAVED)
        return plain_kind, (plain_kind.__pos__(self),)

    def hashed(self):
        decides()
        return plain_kind.__hash__(self)

    number.__reduce_ex__, number.__hash__ = reduced, hashed


def kind(decides, condition, untold, used, instead, varied=False):
    """Create the type of such values.

    `decides` is called when something depends on one. `condition` is called with the result of a comparison,
    and `instead` with a plain number in place of one; they may replace it. `untold` calls a function of
    PyTorch that is not to ask `__torch_function__`.

    In a further run with other numbers, comparisons have the results of the first run: what depends on them
    is the question of a run that inverts them. Where the numbers are `varied`, they have their own.
    """

    class UnknownFloat(Followed):
        """A value that the virtual GPU returned without computing it."""

        __slots__ = ()

        def __round__(self, digits=None):
            if digits is not None:
                return UnknownFloat.of(float.__round__(self, digits), round(first(self), digits))
            decides()
            return float.__round__(self)

        @classmethod
        def of(cls, value, first):
            """Make one of a value, and of what that was in the first run."""
            made = cls(value)
            made.first = first
            return made

        def __divmod__(self, other):
            return self // other, self % other

        def __rdivmod__(self, other):
            return other // self, other % self

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

        @classmethod
        def __torch_function__(cls, function, types, args=(), named=None):
            # A tensor has no place for what is unknown: it takes the value.
            decides()
            args = [_plainly(each, cls) for each in args]
            named = {name: _plainly(each, cls) for name, each in (named or {}).items()}
            if set(types) - {cls}:
                return function(*args, **named)
            return untold(function, args, named)

    def computed(operation, numbers, divisor, otherwise):
        try:
            return operation(*numbers)
        except ZeroDivisionError:
            # The script's own divisor may be zero by mistake; an unknown one is zero here alone.
            if not isinstance(divisor, UnknownFloat):
                raise
            return otherwise

    def followed(name):
        original = getattr(float, name)

        def operator(self, *others):
            divisor = others[0] if name in DIVISIONS else self
            result = computed(original, (self, *others), divisor, 0.0)
            if type(result) is not float:
                return result
            before = computed(original, (first(self), *map(first, others)), divisor, 0.0)
            return UnknownFloat.of(result, before if type(before) is float else 0.0)

        return operator

    def conversion(name):
        original = getattr(float, name)

        def convert(self):
            decides()
            result = original(self)
            return result if name == "__bool__" else instead(result)

        return convert

    def comparison(name):
        original = getattr(float, name)

        def compare(self, other):
            # Correct scripts pass a check for finite values. `math` answers for unknown ones (`math_calls`).
            if other is not self and not (isinstance(other, float) and math.isinf(plain(other))):
                decides()
                result = original(self, other) if varied else original(first(self), first(other))
                return result if result is NotImplemented else condition(result)
            return original(self, other)

        return compare

    binary = [f"__{side}{name}__" for name in ARITHMETIC for side in ("", "r")]
    for name in (*binary, *(f"__{name}__" for name in UNARY)):
        setattr(UnknownFloat, name, followed(name))
    for name in CONVERSIONS:
        setattr(UnknownFloat, f"__{name}__", conversion(f"__{name}__"))
    for name in COMPARISONS:
        setattr(UnknownFloat, f"__{name}__", comparison(f"__{name}__"))
    follow_copies(UnknownFloat, float, decides, used, instead)
    return UnknownFloat


def count_kind(kind, decides, condition, used, instead):
    """Create the type of unknown counts, such as the number of correct predictions.

    A run with their lower bounds shows what depends on them. Floating-point results computed from them are of
    `kind`.
    """

    class UnknownInt(int):
        """A count that the virtual GPU took between its bounds."""

        __slots__ = ()

        def __divmod__(self, other):
            parts = int.__divmod__(self, other)
            return parts if parts is NotImplemented else tuple(map(followed, parts))

        def __bool__(self):
            return condition(int.__bool__(self))

        def __copy__(self):
            return self

        def __deepcopy__(self, memo):
            return self

    def followed(result):
        if type(result) is float:
            return kind(result)
        return UnknownInt(result) if type(result) is int else result

    def define(name, function):
        original = getattr(int, name)
        setattr(UnknownInt, name, lambda self, *others: function(original, self, *others))

    def compared(original, self, other):
        result = original(self, other)
        return result if result is NotImplemented or other is self else condition(result)

    def converted(original, self, *others):
        decides()
        result = original(self, *others)
        return instead(result, result)

    for name in (f"__{side}{name}__" for name in ARITHMETIC for side in ("", "r")):
        define(name, lambda original, *numbers: followed(original(*numbers)))
    for name in (f"__{name}__" for name in UNARY):
        define(name, lambda original, *numbers: followed(original(*numbers)))
    for name in (f"__{name}__" for name in ("int", "trunc", "floor", "ceil", "float", "round")):
        define(name, converted)
    for name in (f"__{name}__" for name in COMPARISONS):
        define(name, compared)
    follow_copies(UnknownInt, int, decides, used, instead)
    return UnknownInt


def integer_kind(condition):
    """Create the type of integers that the virtual GPU returned without computing them, such as tokens.

    Further runs have other integers, but not each that a script waits for: that one of them is the one which
    it is compared with is a condition, and so is the order of both. Integers computed from one are of this
    type, too.
    """

    class UnknownInteger(int):
        """An integer that the virtual GPU returned without computing it."""

        __slots__ = ()

        def __eq__(self, other):
            equal = int.__eq__(self, other)
            return condition(False) if equal is False else equal

        def __ne__(self, other):
            differs = int.__ne__(self, other)
            return condition(True) if differs is True else differs

        def __hash__(self):
            return int.__hash__(self)

        def __reduce_ex__(self, protocol):
            return int, (int.__pos__(self),)

        def __copy__(self):
            return self

        def __deepcopy__(self, memo):
            return self

    def ordered(original):
        def compare(self, other):
            result = original(self, other)
            # Nothing is known of the order of two such integers either, but other integers show that.
            return result if result is NotImplemented or type(other) is not int else condition(result)

        return compare

    def computed(original):
        def operator(self, *others):
            result = original(self, *others)
            return UnknownInteger(result) if type(result) is int else result

        return operator

    for name in ("lt", "le", "gt", "ge"):
        setattr(UnknownInteger, f"__{name}__", ordered(getattr(int, f"__{name}__")))
    binary = [f"__{side}{name}__" for name in (*ARITHMETIC, *BITWISE) for side in ("", "r")]
    for name in (*binary, *(f"__{name}__" for name in (*UNARY, "invert"))):
        setattr(UnknownInteger, name, computed(getattr(int, name)))
    return UnknownInteger


def write_in_yaml(kinds, decides):
    """Let the package `yaml`, which asks for the type of a value, write such numbers as plain ones."""

    def represent(dumper, number):
        decides()
        if isinstance(number, float):
            return dumper.represent_float(plain(number))
        return dumper.represent_int(int.__pos__(number))

    def listen(module):
        for each in (module.SafeRepresenter, module.Representer):
            for kind in kinds:
                each.add_representer(kind, represent)

    imports.after("yaml.representer", listen)
