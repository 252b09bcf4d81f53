"""Finds the branch that a condition chooses, in the source."""

import ast
import functools
import linecache

from . import flows, math_calls, shown_texts

# How often the result of a check for finite values is returned or assigned, ...
FLOWS = 2
# ... functions that make no work, and statements that leave a block: what follows them does not run.
HARMLESS = ("_exit", "exit", "zero_grad")
LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)


def works_if(frame):
    """Return `True` if a condition that a frame evaluates is the test of an `if` statement, and leads to more
    work where it is true: into a block that does not leave, or past one that does.

    A `while` statement, and an `if` that breaks out of one, would run on for as long as it is true.
    """
    statement, loop, is_negated = _statement(frame)
    if statement is None or (isinstance(loop, ast.While) and isinstance(statement.body[-1], ast.Break)):
        return False
    leaves = isinstance(statement.body[-1], LEAVING)
    return leaves or bool(statement.orelse) if is_negated else not leaves


def is_check(frame, truth):
    """Return `True` if the condition that a frame evaluates is a check for finite values, and the branch that
    this truth does not choose may do more than to leave or to show something.
    """
    path = frame.f_code.co_filename
    statement, *_ = _statement(frame)
    test = _expression(frame) if statement is None else statement.test
    return test is not None and may_work(frame, truth) and not _names(test).isdisjoint(_checks(path))


def _expression(frame):
    """Return the whole expression in which a frame evaluates a condition, or its statement."""
    source = shown_texts.source_of(frame.f_code.co_filename)
    node = source.at(frame.f_code, frame.f_lineno, frame.f_lasti)
    while isinstance(source.parents.get(node), ast.expr):
        node = source.parents[node]
    return node


@functools.lru_cache(maxsize=64)
def _checks(path):
    """Return the names of checks: of functions that check for finite values, of the script's own functions
    that call one, and of what these results are assigned to.
    """
    found, nodes = set(math_calls.CHECKS), shown_texts.source_of(path).parents
    for _ in range(FLOWS):
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.Assign)) and _names(node) & found:
                targets = node.targets if isinstance(node, ast.Assign) else ()
                found.update(getattr(each, "id", getattr(each, "attr", "")) for each in targets)
                found.add(getattr(node, "name", ""))
    return found - {""}


def _names(node):
    """Return the names of functions and variables that a part of the source reads."""
    names = {getattr(each, "id", getattr(each, "attr", None)) for each in ast.walk(node)}
    return names - {None}


def may_work(frame, truth):
    """Return `True` if the branch that the truth of a condition does not choose may do more than to leave or
    to show something.
    """
    statement, _, is_negated = _statement(frame)
    if statement is None:
        return True
    if truth == is_negated:
        return not _only_leaves(statement.body)
    if not statement.orelse:
        return isinstance(statement.body[-1], LEAVING)
    return not _only_leaves(statement.orelse)


def _statement(frame):
    """Return the `if` statement whose condition a frame evaluates, the loop around it, and if the condition
    is negated there; `None` for a statement that is not found.
    """
    begin, end = flows.span(frame.f_code, frame.f_lasti) or ((frame.f_lineno, None), (frame.f_lineno, None))
    return _statement_at(frame.f_code.co_filename, begin, end)


@functools.lru_cache(maxsize=1024)
def _statement_at(path, begin, end):
    for statement, loop in _statements(path):
        if begin[1] is not None and _span(statement) == (begin, end):
            # Python 3.11 gives the place of the whole statement for a tensor that it tests itself.
            return statement, loop, _is_negation(statement.test)
        negated = _negations(statement.test, begin, end)
        if negated is not None:
            return statement, loop, negated
    return None, None, False


def _only_leaves(block):
    *before, last = block
    return all(map(_tells, before)) and (isinstance(last, (*LEAVING, ast.Pass)) or _tells(last))


def _tells(statement):
    """Return `True` if a statement only shows something, skips a step or ends the script."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = flows.called(call.func) if isinstance(call, ast.Call) else None
    return name in shown_texts.SHOWING or name in HARMLESS


def _is_negation(test):
    """Return `True` if a test, or each part of one, is negated."""
    if isinstance(test, ast.BoolOp):
        return all(map(_is_negation, test.values))
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _negations(test, begin, end):
    """Return `True` if the expression at a place is negated in a test; `None` if it is not in the test."""
    found = None
    pending = [(test, False)]
    while pending:
        node, negated = pending.pop()
        if not _holds(node, begin, end):
            continue
        found = negated
        inverts = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        pending += [
            (each, negated != inverts) for each in ast.iter_child_nodes(node) if hasattr(each, "lineno")
        ]
    return found


def _holds(node, begin, end):
    """Return `True` if a node spans a place, of which only the line may be known."""
    if begin[1] is None:
        return node.lineno <= begin[0] <= node.end_lineno
    first, last = _span(node)
    return first <= begin and end <= last


def _span(node):
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


@functools.lru_cache(maxsize=64)
def _statements(path):
    """Return the `if` statements of a file, each with the loop around it."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    found = []
    pending = [(tree, None)]
    while pending:
        node, loop = pending.pop()
        if isinstance(node, ast.If):
            found.append((node, loop))
        inner = node if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else loop
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inner = None
        pending += [(each, inner) for each in ast.iter_child_nodes(node)]
    return found
