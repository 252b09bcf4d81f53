"""Finds the maximum of an unknown number of distinct values: a correct script, or a library, that raises an
error where there are more of them, has no more.
"""

import ast
import functools
import inspect
import operator
import textwrap

from . import compared
from .compared import NotEvaluatedError
from .oom import variables_of

# Comparisons and operations of the conditions that are evaluated.
ORDERS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
COMPARES = {
    **{each: compared.COMPARISONS[each] for each in ORDERS},
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
OPERATIONS = {each: compared.OPERATIONS[each] for each in (ast.Add, ast.Sub)}


def allowed(frame, length):
    """Return the largest number up to `length` with which no check of the frame's function fails. The frame
    is at a call of `len`.
    """
    checks = checks_of(frame.f_code, frame.f_lineno)
    for test, fails, name in checks:
        check = Check(frame, name)
        try:
            if bool(check.value(test, length)) != fails:
                continue
            # The largest number is at, or next to, one that the condition compares with.
            near = {each + change for each in check.compared for change in (-1, 0, 1)}
            passing = [
                each
                for each in near
                if 0 <= each < length and bool(Check(frame, name).value(test, each)) != fails
            ]
        except NotEvaluatedError:
            continue
        if passing:
            length = max(passing)
    return length


@functools.lru_cache(maxsize=256)
def checks_of(code, line):
    """Return the conditions of a function that end it with an error and depend on the `len` at a line: each
    with the truth that fails, and the name that has the length, or None.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return ()
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    assigned, name = {}, None
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            assigned.setdefault(each.targets[0].id, []).append(each)
            if is_length(each.value) and each.lineno <= line <= each.end_lineno:
                name = each.targets[0].id
    found = []
    for each in ast.walk(tree):
        if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Raise):
            test, fails = each.test, True
        elif isinstance(each, ast.Assert):
            test, fails = each.test, False
        else:
            continue
        if isinstance(test, ast.Name) and test.id != name and len(assigned.get(test.id, ())) == 1:
            # `check = number > 9`, then `if check: raise`.
            test = assigned[test.id][0].value
        parts = list(ast.walk(test))
        inline = any(is_length(part) and part.lineno <= line <= part.end_lineno for part in parts)
        named = name is not None and any(isinstance(part, ast.Name) and part.id == name for part in parts)
        if each.lineno >= line and (named or (name is None and inline)):
            found.append((test, fails, name))
    return tuple(found)


def is_length(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


class Check:
    """Evaluates a condition with a number in place of a length."""

    def __init__(self, frame, name):
        self.frame = frame
        self.name = name
        # Numbers that the length is compared with.
        self.compared = []

    def value(self, node, length):
        if (isinstance(node, ast.Name) and node.id == self.name) or (self.name is None and is_length(node)):
            return length
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            for names in (variables_of(self.frame), self.frame.f_globals):
                if node.id in names:
                    return names[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            stored = getattr(self.value(node.value, length), "__dict__", {})
            if node.attr in stored:
                return stored[node.attr]
        elif isinstance(node, ast.IfExp):
            return self.value(node.body if self.value(node.test, length) else node.orelse, length)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            sides = [self.number(each, length) for each in (node.left, node.right)]
            return OPERATIONS[type(node.op)](*sides)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARES:
            left, right = (self.value(each, length) for each in (node.left, node.comparators[0]))
            if not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
                for each in (left, right):
                    if type(each) is not int:
                        raise NotEvaluatedError
                    self.compared.append(each)
            return COMPARES[type(node.ops[0])](left, right)
        raise NotEvaluatedError

    def number(self, node, length):
        found = self.value(node, length)
        if type(found) is not int:
            raise NotEvaluatedError
        return found
