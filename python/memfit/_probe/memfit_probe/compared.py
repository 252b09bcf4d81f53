"""Numbers with which a script compares what it reads from the GPU as a plain number, array or text.

No comparison of the result of `int(tensor)`, `float(tensor)` or `tensor.cpu()` can be seen. So the source is
searched for comparisons, lookups and cases that the result may reach (`flows`). A number that would give one
of these another result is a condition: that it is the number which the script read. Other operands are
evaluated where they are constants, or variables and attributes that exist when the number is read.
"""

import ast
import contextlib
import inspect
import itertools
import linecache
import math
import operator

from . import flows
from .oom import is_library, variables_of

# Maximum number of numbers at one place, and of elements that are taken from one container.
MAX_NUMBERS, MAX_ELEMENTS = 8, 3
# Lines of the user's modules beyond which a value is only followed in the file that reads it.
MAX_LINES = 20_000
# Reads at a place after which operands are not evaluated any more.
MAX_EVALUATED = 8
# Maximum number of assignments through which a number is computed.
MAX_ASSIGNED = 4
# Distance of a floating-point number from the one that it is compared with, relative to that.
STEP = 0.125
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    # The number may stand for a container that it is in.
    ast.In: lambda left, right: left == right if type(right) in NUMBERS else left in right,
    ast.NotIn: lambda left, right: left != right if type(right) in NUMBERS else left not in right,
}
UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
FUNCTIONS = {each.__name__: each for each in (abs, float, int, len, max, min, round, str)}
# Functions that compare their arguments, and methods of containers that look an element up.
COMPARING_NAMES = """
    allclose array_equal bisect bisect_left bisect_right digitize eq equal ge greater greater_equal gt isclose le
    less less_equal lt ne not_equal searchsorted
"""
COMPARING = frozenset(COMPARING_NAMES.split())
LOOKUPS = (*flows.LOOKUPS, "setdefault")
# An operand is a plain value, and its evaluation runs nothing of the script's.
NUMBERS, CONTAINERS = (int, float), (dict, frozenset, list, set, tuple)


class NotEvaluatedError(Exception):
    """An expression has a part that is not evaluated."""


class Compared:
    """The numbers of each place that reads one."""

    def __init__(self):
        self.places = {}
        self.programs = {}

    def numbers(self, frames, read, only_lookups=False):
        """Return the numbers that would change what the script does with a value that it reads in the
        innermost of these frames, which is one of the user's, where `read` is what it has now.
        """
        frame = frames[0]
        key = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = self._place(frame, only_lookups)
        if place.uses and place.reads < MAX_EVALUATED:
            place.reads += 1
            place.evaluate(frames, read)
        return place.found

    def _place(self, frame, only_lookups):
        path = frame.f_code.co_filename
        sources = flows.sources({path}, MAX_LINES) or {path: linecache.getlines(path)}
        program = self.programs.get(tuple(sources))
        if program is None:
            program = self.programs[tuple(sources)] = flows.Program(sources)
        span = flows.span(frame.f_code, frame.f_lasti)
        statement = program.at(path, frame.f_lineno, span)
        if statement is None:
            return Place([], None)
        flow = flows.ValueFlow(program, statement, span)
        uses = [
            (each, node)
            for each in flow.touched
            for node in each.nodes()
            if (_looks_up if only_lookups else _is_use)(node)
        ]
        return Place(uses, flow)


def _is_use(node):
    return isinstance(node, (ast.Compare, ast.Match, ast.Subscript, ast.Call))


def _looks_up(node):
    """Return `True` if an expression may look a number up by its hash, which no comparison shows."""
    if isinstance(node, ast.Compare):
        return any(isinstance(each, (ast.In, ast.NotIn)) for each in node.ops)
    return isinstance(node, (ast.Subscript, ast.Call))


class Place:
    """Uses of what one place reads, and the numbers that change the result of one."""

    def __init__(self, uses, flow):
        self.uses, self.flow = uses, flow
        self.reads, self.found = 0, []

    def evaluate(self, frames, read):
        for statement, node in self.uses:
            # What cannot be evaluated is no number; other numbers are tried in any case.
            with contextlib.suppress(Exception):
                for number in Use(statement, node, self.flow, frames, read).numbers():
                    if number not in self.found and len(self.found) < MAX_NUMBERS:
                        self.found.append(number)


class Use:
    """A comparison, a lookup or a `match` statement with a value that was read."""

    def __init__(self, statement, node, flow, frames, read, depth=0):
        self.statement, self.node, self.flow = statement, node, flow
        self.frames, self.read, self.depth = frames, read, depth

    def numbers(self):
        """Return numbers in place of the one that was read with which the result is another."""
        node = self.node
        if isinstance(node, ast.Compare):
            return self._of_comparison([node.left, *node.comparators])
        if isinstance(node, ast.Match):
            return self._of_cases()
        if isinstance(node, ast.Subscript):
            return self._of_lookup(node.value, node.slice)
        name, given = flows.called(node.func), node.args
        if name in COMPARING and any(map(self._holds, given)):
            others = [self._other(each) for each in given if not self._holds(each)]
            return self._apart(self._plain([each for one in others for each in numbers_in(one)]))
        if name in LOOKUPS and isinstance(node.func, ast.Attribute) and given:
            return self._of_lookup(node.func.value, given[0])
        return []

    def _of_comparison(self, sides):
        mine = [each for each in sides if self._holds(each)]
        if not mine or len(mine) == len(sides):
            return []
        others = [number for each in sides if each not in mine for number in numbers_in(self._other(each))]
        for as_whole in (False, True):
            with contextlib.suppress(NotEvaluatedError):
                return self._changing(mine, others, as_whole)
        return []

    def _changing(self, mine, others, as_whole):
        """Return the first number near those that it is compared with which changes the comparison's result;
        of a container, its elements. `as_whole` takes the sides that hold the number for the number.
        """
        sides = mine if as_whole else ()

        def result(number):
            return bool(self._value(self.node, number, sides))

        before = result(self.read)
        near = [number for each in mine for other in others for number in self._solutions(each, other, sides)]
        near += [(one + other) / 2 for one, other in itertools.pairwise(near)]
        found = [each for each in self._plain(self._apart(near)) if result(each) != before]
        tests = [each for each in self.node.ops if isinstance(each, (ast.In, ast.NotIn))]
        return found[: MAX_ELEMENTS if tests else 1]

    def _solutions(self, side, other, sides):
        """Return the number with which a side of a comparison equals the other one."""
        first, second = (self._value(side, number, sides) for number in (0, 1))
        if not isinstance(first, NUMBERS) or not isinstance(second, NUMBERS):
            return [other]
        slope = second - first
        return [(other - first) / slope if slope not in (0, 1) else other - first] if slope else []

    def _of_cases(self):
        if not self._holds(self.node.subject):
            return []
        patterns = [each for case in self.node.cases for each in ast.walk(case.pattern)]
        values = [self._other(each.value) for each in patterns if isinstance(each, ast.MatchValue)]
        return self._plain([number for each in values for number in numbers_in(each)])

    def _of_lookup(self, container, key):
        """Return keys of a dictionary, those first that have the largest numbers as their values, or elements
        of a list that is searched.
        """
        if self._holds(container):
            is_search = isinstance(self.node, ast.Call) and not self._holds(key)
            return self._plain(numbers_in(self._other(key))) if is_search else []
        if not self._holds(key):
            return []
        found = self._other(container)
        if isinstance(found, dict):
            keys = [each for each in found if isinstance(each, NUMBERS)]
            sizes = [found[each] if isinstance(found[each], NUMBERS) else 0 for each in keys]
            ordered = sorted(range(len(keys)), key=lambda place: (-sizes[place], -place))
            return self._plain([keys[place] for place in ordered[:MAX_ELEMENTS]])
        # An index in a list is tried as other numbers are.
        return self._plain(numbers_in(found)) if isinstance(self.node, ast.Call) else []

    def _apart(self, near):
        step = 1 if isinstance(self.read, int) else None
        found = list(near)
        for each in near:
            apart = step or max(abs(each), 1.0) * STEP
            found += [each + apart, each - apart]
        return found

    def _plain(self, found):
        """Return different numbers of the type of the one that was read."""
        plain = []
        for each in found:
            if not math.isfinite(each):
                continue
            if isinstance(self.read, int):
                plain += [math.floor(each), math.ceil(each)]
            else:
                plain.append(float(each))
        return [each for each in dict.fromkeys(plain) if each != self.read]

    def _holds(self, node):
        return self.flow.holds(node, self.statement)

    def _other(self, node):
        """Return the value of an operand that does not depend on the number."""
        return self._value(node, None, ())

    def _value(self, node, number, sides):
        """Evaluate an expression with a number in place of the one that was read, or of these parts."""
        if number is not None and (node in sides or self.flow.is_read(node, self.statement)):
            assigned = None if node in sides else self.flow.assignment(node, self.statement)
            return number if assigned is None else self._assigned(assigned, number)

        def value(part):
            return self._value(part, number, sides)

        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._variable(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return [value(each) for each in node.elts]
        if isinstance(node, ast.Dict):
            return {value(key): None for key in node.keys}
        if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
            return UNARY[type(node.op)](value(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return plainly(OPERATIONS[type(node.op)], value(node.left), value(node.right))
        if isinstance(node, ast.Subscript):
            return plainly(operator.getitem, value(node.value), value(node.slice))
        if isinstance(node, ast.Compare):
            sides_of = [value(each) for each in (node.left, *node.comparators)]
            if any(type(each) in NUMBERS for each in sides_of):
                # A text of the number is compared with another text.
                sides_of = [
                    next(iter(numbers_in(each)), each) if type(each) is str else each for each in sides_of
                ]
            pairs = zip(node.ops, sides_of, sides_of[1:], strict=False)
            return all(plainly(COMPARISONS.get(type(one)), *each) for one, *each in pairs)
        if isinstance(node, ast.Call) and not node.keywords and getattr(node.func, "id", None) in FUNCTIONS:
            return plainly(FUNCTIONS[node.func.id], *map(value, node.args))
        raise NotEvaluatedError

    def _assigned(self, statement, number):
        """Return the value of a variable that one statement computes from the number."""
        if self.depth == MAX_ASSIGNED:
            return number
        inner = Use(statement, statement.node, self.flow, self.frames, self.read, self.depth + 1)
        return inner._value(statement.node.value, number, ())

    def _variable(self, name):
        function = self.statement.key(name)[0]
        for frame in self.frames if function is not None else ():
            code = frame.f_code
            is_there = (code.co_filename, code.co_name) == (self.statement.path, function.called)
            if is_there and name in (found := variables_of(frame)):
                return found[name]
        if function is not None:
            default = function.defaults.get(name)
            if default is None:
                raise NotEvaluatedError
            return self._other(default)
        here = [each.f_globals for each in self.frames if each.f_code.co_filename == self.statement.path]
        for names in (*here, *flows.namespaces(self.statement.path)):
            if name in names:
                return names[name]
        raise NotEvaluatedError

    def _attribute(self, node):
        """Return an attribute, without a call of the script's own code; that of any object in the frames if
        the one that has it does not exist here.
        """
        try:
            return attribute(self._other(node.value), node.attr)
        except NotEvaluatedError:
            for frame in self.frames:
                for each in (*variables_of(frame).values(), *frame.f_globals.values()):
                    with contextlib.suppress(NotEvaluatedError):
                        return stored(each, node.attr)
            raise


def stored(each, name):
    """Return an attribute that an object itself has."""
    with contextlib.suppress(TypeError):
        names = vars(each)
        if name in names and isinstance(names[name], (*NUMBERS, *CONTAINERS, str)):
            return names[name]
    raise NotEvaluatedError


def attribute(each, name):
    found = inspect.getattr_static(each, name, NotEvaluatedError)
    if found is not NotEvaluatedError and not hasattr(type(found), "__get__"):
        return found
    module = inspect.getmodule(type(each))
    if module is None or not is_library(getattr(module, "__file__", None) or "<built in>"):
        raise NotEvaluatedError
    return getattr(each, name)


def plainly(function, *values):
    """Call a function with plain values, whose methods are Python's own."""
    if function is None or not all(type(each) in (*NUMBERS, *CONTAINERS, str, bool) for each in values):
        raise NotEvaluatedError
    try:
        return function(*values)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        raise NotEvaluatedError from None


def numbers_in(value):
    """Return the number that a value is, as a text too, or the first and the last ones of its elements."""
    if type(value) in CONTAINERS:
        elements = [number for each in value for number in numbers_in(each)] if len(value) < 1 << 16 else []
        return [*elements[: MAX_ELEMENTS - 1], *elements[-1:]]
    if type(value) is str:
        with contextlib.suppress(ValueError):
            return [float(value) if "." in value else int(value)]
    return [value] if type(value) in NUMBERS else []
