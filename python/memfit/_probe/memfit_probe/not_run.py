"""Finds statements that would use a GPU but did not run before the run was ended.

The files of the functions that are still running are read. A statement counts if it calls a model, copies
or moves one, or creates or extends an optimizer: such a statement would have been seen (`calls_seen`). It is
reported if it comes after the place that the run has reached, or within a part of a loop that never led to
such an operation.
"""

import ast
import functools
import inspect
import itertools
import linecache
import types

from .calls_seen import is_own
from .guard import guarded
from .oom import frames_here, variables_of

# Maximum number of statements that are reported.
MAX_PLACES = 16
# Maximum number of functions that are followed from a statement.
MAX_DEPTH = 4
# Maximum size of a file that is read.
MAX_CHARACTERS = 1 << 20
# Methods of models, of PyTorch and Transformers, that are seen.
SEEN_METHODS = frozenset(
    ["forward", "generate", "to", "cuda", "half", "bfloat16", "float", "double", "requires_grad_"]
)
# Methods by which trainers of libraries run a model, and the packages that these come from.
RUNS = frozenset(["evaluate", "predict", "test", "validate", "fit", "train"])
TRAINERS = frozenset(("transformers", "trl", "lightning", "pytorch_lightning"))
LOOPS = (ast.For, ast.AsyncFor, ast.While)
# A block of these may not run although the statement does.
CHOICES = (ast.If, *LOOPS)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Stands for a value that is not known.
UNKNOWN = object()


@guarded
def find(session):
    """Return the place and the first source line of each of these statements."""
    seen = session.calls_seen.lines
    found, done, repeats = {}, set(), False
    for frame in reversed(frames_here()):
        path, first = frame.f_code.co_filename, frame.f_code.co_firstlineno
        body = _body(frame.f_code, frame.f_lineno) if is_own(path) and (path, first) not in done else None
        if body is None:
            continue
        done.add((path, first))
        scope = _Scope(session.torch, variables_of(frame), frame.f_globals)
        reached = _Reached(scope, seen.get(path, ()), frame.f_lineno)
        for statement in reached.unseen(body, repeats):
            code = linecache.getline(path, statement.lineno).strip()
            found.setdefault(f"{path}:{statement.lineno}", code)
        repeats = repeats or reached.repeats
    return list(found.items())[:MAX_PLACES]


def _body(code, line):
    """Return the statements of a function around a line, or of a module."""
    tree = _tree(code.co_filename)
    if tree is None or code.co_name == "<module>":
        return getattr(tree, "body", None)
    function = _function(tree, code, line)
    return function.body if function is not None else None


def _function(tree, code, line):
    """Return the syntax tree of the innermost function with the name of this code around a line."""
    around = None
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= node.end_lineno:
                around = node
    return around


@functools.lru_cache(maxsize=64)
def _tree(path):
    source = "".join(linecache.getlines(path))
    if not source or len(source) > MAX_CHARACTERS:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Reached:
    """A running function, and the line that it has reached."""

    def __init__(self, scope, seen, line):
        self.scope = scope
        self.seen = seen
        self.line = line
        # Set once a loop around the line was found: what it contains may run again.
        self.repeats = False

    def unseen(self, body, repeats):
        """Yield the statements of a body that would have been seen if they had run, and that may still run:
        those after the line, and with `repeats` all others.
        """
        after = False
        for statement in body:
            if self._is_here(statement):
                after = True
                loops = isinstance(statement, LOOPS)
                self.repeats = self.repeats or loops
                yield from self._within(statement, repeats or loops)
            elif after and not self._ran(statement):
                yield from self._first(statement)
            elif repeats:
                yield from self._within(statement, repeats)

    def _within(self, statement, repeats):
        """Yield those of a compound statement that runs, or has run."""
        for block in _blocks(statement):
            if any(self._ran(each) or self._is_here(each) for each in block):
                yield from self.unseen(block, repeats)
            elif not repeats:
                continue
            elif isinstance(statement, CHOICES) and any(map(self.scope.is_sure_to_be_seen, block)):
                # The line of an `else` is not known.
                yield statement if block is statement.body else block[0]
            else:
                for inner in block:
                    yield from self._within(inner, repeats)

    def _first(self, statement):
        """Yield a statement if it would be seen; of a `with` or `try`, the first one within it."""
        if isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
            inner = [each for block in _blocks(statement) for each in block]
            yield from itertools.islice((each for one in inner for each in self._first(one)), 1)
        elif self.scope.would_be_seen(statement):
            yield statement

    def _is_here(self, statement):
        return statement.lineno <= self.line <= statement.end_lineno

    def _ran(self, statement):
        return any(statement.lineno <= line <= statement.end_lineno for line in self.seen)


def _blocks(statement):
    """Return the blocks of a compound statement that run if it runs; handlers of errors are none."""
    if isinstance(statement, ast.Try):
        return [statement.body + statement.orelse + statement.finalbody]
    if isinstance(statement, ast.If):
        return [block for block in (statement.body, statement.orelse) if block]
    return [statement.body] if isinstance(statement, (*LOOPS, ast.With, ast.AsyncWith)) else []


class _Scope:
    """Variables of a function."""

    def __init__(self, torch, variables, names, depth=0, surely=False):
        self.torch = torch
        self.variables = variables
        self.names = names
        self.depth = depth
        self.surely = surely

    def is_sure_to_be_seen(self, node):
        """Return `True` if a statement leads to an operation that `calls_seen` records, whatever the
        conditions in it are.
        """
        return _Scope(self.torch, self.variables, self.names, self.depth, surely=True).would_be_seen(node)

    def would_be_seen(self, node):
        """Return `True` if a statement or expression may lead to an operation that `calls_seen` records."""
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            return False
        if self.surely and isinstance(node, (ast.If, ast.IfExp, ast.Try)):
            return False
        if isinstance(node, ast.Call) and self._call_is_seen(node):
            return True
        return any(self.would_be_seen(child) for child in ast.iter_child_nodes(node))

    def _call_is_seen(self, call):
        owner, rest = self.value(call.func)
        torch = self.torch
        if isinstance(owner, torch.nn.Module):
            # A module without parameters, such as a loss, begins no forward pass of a model.
            if next(owner.parameters(), None) is None:
                return False
            return not rest or (len(rest) == 1 and rest[0] in SEEN_METHODS)
        if isinstance(owner, torch.optim.Optimizer):
            return rest == ["add_param_group"]
        if rest:
            return rest[0] in RUNS and not TRAINERS.isdisjoint(map(_package, type(owner).__mro__))
        if isinstance(owner, type):
            return issubclass(owner, torch.optim.Optimizer)
        if isinstance(owner, types.MethodType):
            return self._runs(owner.__func__, call, (owner.__self__,))
        if isinstance(owner, types.FunctionType):
            return self._runs(owner, call, ())
        return False

    def _runs(self, function, call, bound):
        """Return `True` if a function leads to such an operation."""
        if function.__module__ == "copy" and function.__name__ == "deepcopy":
            return any(isinstance(self.value(each)[0], self.torch.nn.Module) for each in call.args)
        # Calls within a compiled function are not seen.
        if self.depth >= MAX_DEPTH or hasattr(function, "_torchdynamo_orig_callable"):
            return False
        function = inspect.unwrap(function)
        code = _own_code(function)
        tree = _tree(code.co_filename) if code is not None else None
        inner = _function(tree, code, code.co_firstlineno) if tree is not None else None
        if inner is None:
            return False
        names = [each.arg for each in (*inner.args.posonlyargs, *inner.args.args)]
        given = [*bound, *map(self._argument, call.args)]
        variables = dict(zip(names, given, strict=False))
        variables.update((each.arg, self._argument(each.value)) for each in call.keywords)
        scope = _Scope(self.torch, variables, function.__globals__, self.depth + 1, self.surely)
        return any(scope.would_be_seen(each) for each in inner.body)

    def _argument(self, node):
        value, rest = self.value(node)
        return UNKNOWN if rest else value

    def value(self, node):
        """Return the value of a name with attributes as far as it is known, and the names of the others.

        No code of the script runs for that: properties stay unknown.
        """
        names = _dotted(node)
        if names is None:
            return UNKNOWN, []
        first, *rest = names.split(".")
        value = self.variables.get(first, self.names.get(first, UNKNOWN))
        while rest:
            inner = _attribute(self.torch, value, rest[0])
            if inner is UNKNOWN:
                break
            value = inner
            rest.pop(0)
        return value, rest


def _attribute(torch, value, name):
    """Return an attribute that is stored in an object, or a method of the user's; else `UNKNOWN`."""
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return UNKNOWN
    if isinstance(value, torch.nn.Module) and name in stored.get("_modules", ()):
        return stored["_modules"][name]
    if name in stored and not isinstance(value, type):
        return stored[name]
    for kind in type(value).__mro__:
        method = vars(kind).get(name)
        if method is not None:
            own = isinstance(method, types.FunctionType) and _own_code(inspect.unwrap(method)) is not None
            return types.MethodType(method, value) if own else UNKNOWN
    return UNKNOWN


def _own_code(function):
    """Return the code of a function that the user wrote, or None."""
    code = getattr(function, "__code__", None)
    return code if code is not None and is_own(code.co_filename) else None


def _package(kind):
    return kind.__module__.partition(".")[0]


def _dotted(node):
    """Return a name with attributes as text, or None."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(names)])
