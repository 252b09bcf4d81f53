"""Follows values that the script read from the GPU through its source, to the statement that failed.

A name is tainted if such a value can be in it: by an assignment, an argument, a returned value, a method
call on it, or because a condition decides whether it is assigned. Attributes are told apart by their names
alone, and the order of statements is ignored: a flow may be found where there is none. One through the state
of a library, or an early `break` or `return`, is missed.
"""

import ast
import functools
import itertools
import linecache
import os
import sys

from . import imports
from .oom import is_library
from .uncaught import HERE

# Larger projects are not analysed: anything may have flowed anywhere.
MAX_FILES = 400
MAX_LINES = 200_000
# The folder of memfit's own modules.
PROBE = os.path.dirname(HERE) + os.sep
# A function that only shows its arguments.
SHOWS = "print"
# Methods that look what they are given up in a container, and do not put it there.
LOOKUPS = ("count", "get", "index", "pop")
# Part of the message of an exception that a loader's worker raised, and of the paths of loaders' code.
IN_WORKER = "in DataLoader worker process"
LOADING = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
CONTROL = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def scope(path):
    """Return the package of a library's file; for PyTorch, which is large, the file itself."""
    _, separator, inner = path.rpartition(f"{os.sep}site-packages{os.sep}")
    package = inner.split(os.sep, 1)[0]
    return path if not separator or package == "torch" else package


def span(code, instruction):
    """Return the beginning and the end of an instruction's expression, each a line and a column; `None` where
    Python does not tell, as before 3.11.
    """
    if sys.version_info < (3, 11):
        return None
    places = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,))
    return None if None in places else ((places[0], places[2]), (places[1], places[3]))


def site(frames):
    """Describe where a value is read: the user's file and line, and the libraries inside of that."""
    libraries = []
    for frame in frames:
        path = frame.f_code.co_filename
        if not is_library(path):
            return path, frame.f_lineno, tuple(libraries)
        libraries.append(scope(path))
    return None, 0, tuple(libraries)


def is_in_data(exception):
    """Return `True` if an exception was raised while a loader or a data set made a sample: in code that runs
    on samples, in whichever process.
    """
    if IN_WORKER in str(exception):
        return True
    traceback = exception.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        path = code.co_filename
        if LOADING in path or (code.co_name == "__getitem__" and not is_library(path)):
            return True
        traceback = traceback.tb_next
    return False


def may_reach(sites, traceback):
    """Return `False` if no value read at these sites can have reached the innermost of these lines."""
    places = []
    while traceback is not None:
        places.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    places = [each for each in places if not each[0].startswith(HERE)]
    own = [index for index, (path, _) in enumerate(places) if not is_library(path)]
    if not own or any(path is None for path, _, _ in sites):
        return True
    libraries = {name for _, _, inside in sites for name in inside}
    if any(scope(path) in libraries for path, _ in places[own[-1] + 1 :]):
        return True
    mine = [places[index] for index in own]
    # What a library calls back works on what the library was given.
    calling = [places[index] for index in own[:-1] if index + 1 not in own]
    found = sources({path for path, *_ in (*sites, *mine)})
    if found is None:
        return True
    program = Program(found)
    return program.reached([(path, line) for path, line, _ in sites], mine, calling)


def sources(paths, max_lines=MAX_LINES):
    """Return the lines of these files and of all modules of the user's; `None` if any cannot be read."""
    loaded = (namespace.get("__file__") for _, namespace in imports.loaded())
    found = {path: linecache.getlines(path) for path in paths}
    for path in loaded:
        mine = (
            isinstance(path, str)
            and path.endswith(".py")
            and not path.startswith(PROBE)
            and not is_library(path)
        )
        if mine and len(found) <= MAX_FILES:
            found.setdefault(path, linecache.getlines(path))
    complete = all(found[path] for path in paths)
    small = len(found) <= MAX_FILES and sum(map(len, found.values())) <= max_lines
    return found if complete and small else None


def namespaces(path):
    """Return the variables of the modules that a file is loaded as."""
    return [names for _, names in imports.loaded() if names.get("__file__") == path]


class Statement:
    """A simple statement, or the head of a compound one."""

    def __init__(self, path, node, parts, function, controls, imported):
        self.path = path
        self.imported = imported
        self.node, self.parts = node, parts
        self.first = node.lineno
        ends = [each.end_lineno for part in parts for each in ast.walk(part) if hasattr(each, "end_lineno")]
        self.last = max(ends, default=node.lineno)
        self.function = function
        # Heads of the statements that decide whether it runs.
        self.controls = controls
        self.returns = isinstance(node, ast.Return)
        self.reads, self.writes, self.calls, self.receivers = set(), set(), set(), set()
        for part in parts:
            self._add(part)

    def nodes(self):
        """Return the statement with its expressions."""
        inner = [each for part in self.parts for each in ast.walk(part)]
        return inner if self.node in inner else [self.node, *inner]

    def has(self, place):
        """Return `True` if a part of the statement contains a place."""
        spans = [
            ((each.lineno, each.col_offset), _end(each)) for each in self.parts if hasattr(each, "lineno")
        ]
        return place is None or any(begin <= place[0] and place[1] <= end for begin, end in spans)

    def _add(self, part):
        for node in ast.walk(part):
            if isinstance(node, ast.Name):
                key = self.key(node.id)
                (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add(key)
            elif isinstance(node, ast.Attribute):
                (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add("." + node.attr)
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                self.writes |= self.root(node.value)
            elif isinstance(node, (ast.Yield, ast.YieldFrom)):
                self.returns = True
            elif isinstance(node, ast.Call):
                called = node.func
                if isinstance(called, ast.Attribute):
                    self.calls.add(called.attr)
                    self.receivers |= self.root(called.value)
                elif isinstance(called, ast.Name):
                    self.calls.add(called.id)

    def key(self, name):
        """Return a variable's name with the function that it belongs to."""
        function = self.function
        while function is not None and name not in function.names:
            function = function.outer
        return (function, name)

    def _is_imported(self, node):
        return isinstance(node, ast.Name) and node.id in self.imported

    def root(self, node):
        """The variable, or attribute, whose contents an item or a method call changes."""
        while isinstance(node, (ast.Subscript, ast.Call)):
            node = node.value if isinstance(node, ast.Subscript) else node.func
            # A module's function returns a new object.
            if isinstance(node, ast.Attribute) and self._is_imported(node.value):
                return set()
        if self._is_imported(node):
            return set()
        if isinstance(node, ast.Attribute):
            return {"." + node.attr}
        return {self.key(node.id)} if isinstance(node, ast.Name) and node.id not in ("self", "cls") else set()


class Function:
    """A function, with the names that are its own."""

    def __init__(self, node, outer, owner):
        self.outer, self.called = outer, node.name
        # A class is called to construct it.
        self.name = owner if node.name == "__init__" and owner else node.name
        given = node.args
        arguments = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
        self.parameters = {each.arg for each in arguments if each is not None} - {"self", "cls"}
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        self.positional = [each for each in positional if each not in ("self", "cls")]
        defaults = zip(reversed(positional), reversed(given.defaults), strict=False)
        named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        self.defaults = {**dict(defaults), **{each.arg: value for each, value in named if value is not None}}
        inside = [each for each in ast.walk(node) if isinstance(each, (ast.Global, ast.Nonlocal))]
        stored = {
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
        }
        shared = {name for each in inside for name in each.names}
        self.names = (self.parameters | {"self", "cls"} | stored) - shared


class Program:
    """All statements of some files."""

    def __init__(self, sources):
        self.statements, self.functions = [], {}
        # The modules and classes that each file imports.
        self.imported = {}
        for path, lines in sources.items():
            try:
                tree = ast.parse("".join(lines))
            except (SyntaxError, ValueError, RecursionError):
                continue
            imports = [each for each in ast.walk(tree) if isinstance(each, ast.Import)]
            names = {(each.asname or each.name).split(".")[0] for one in imports for each in one.names}
            self.imported[path] = names | _imported_classes(tree)
            self._block(path, tree.body, None, (), None)

    def _block(self, path, body, function, controls, owner):
        for node in body:
            self._statement(path, node, function, controls, owner)

    def _statement(self, path, node, function, controls, owner):
        if isinstance(node, FUNCTIONS):
            inner = Function(node, function, owner)
            self.functions.setdefault(inner.name, []).append(inner)
            return self._block(path, node.body, inner, (), None)
        if isinstance(node, ast.ClassDef):
            return self._block(path, node.body, function, controls, node.name)
        blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
        blocks += [each.body for each in getattr(node, "handlers", ()) or getattr(node, "cases", ())]
        blocks = [block for block in blocks if isinstance(block, list)]
        inside = {id(each) for block in blocks for each in block}
        handlers = (ast.ExceptHandler, ast.match_case)
        parts = (
            [
                each
                for each in ast.iter_child_nodes(node)
                if id(each) not in inside and not isinstance(each, handlers)
            ]
            if blocks
            else [node]
        )
        head = Statement(path, node, parts, function, controls, self.imported[path])
        self.statements.append(head)
        if isinstance(node, CONTROL):
            controls = (*controls, head)
        for block in blocks:
            self._block(path, block, function, controls, owner)
        return None

    @functools.cached_property
    def writers(self):
        """The statements that write each name."""
        found = {}
        for statement in self.statements:
            for key in statement.writes:
                found.setdefault(key, []).append(statement)
        return found

    @functools.cached_property
    def users(self):
        """The statements that read each name, or call each function."""
        found = {}
        for statement in self.statements:
            for key in statement.reads | statement.calls:
                found.setdefault(key, []).append(statement)
        return found

    def at(self, path, line, place=None):
        """The smallest statement on a line, or the one there that has an expression at a place."""
        found = [each for each in self.statements if each.path == path and each.first <= line <= each.last]
        found = [each for each in found if each.has(place)] or found
        return min(found, key=lambda each: each.last - each.first, default=None)

    def reached(self, sites, places, calling=()):
        """Return `True` if a value of the sites can have reached the last of the places, or one of those that
        call a library which calls the script back.
        """
        sources = {self.at(path, line) for path, line in sites}
        failed = [self.at(path, line) for path, line in places]
        if None in sources or None in failed:
            return True
        flow = Flow(self, sources)
        given = (self.at(path, line) for path, line in calling)
        return (
            flow.touches(failed[-1])
            or any(map(flow.decided, failed))
            or any(each is not None and flow.touches(each) for each in given)
        )


def _imported_classes(tree):
    """Return the names of classes, as they are spelled, that a file imports: what a class method is given is
    followed into it, and the class itself stays what it was.
    """
    froms = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom))
    names = (each.asname or each.name for one in froms for each in one.names)
    return {name for name in names if name[:1].isupper() and not name.isupper()}


class Flow:
    """Parts of a program that values may have reached: names, results and bodies of functions, statements."""

    def __init__(self, program, sources):
        self.program = program
        self.names, self.results, self.bodies = set(), set(), set()
        self.touched = set(sources)
        self.decides = set()
        known = -1
        while known != (known := self._size()):
            for statement in program.statements:
                self._visit(statement)

    def _size(self):
        kept = (self.names, self.results, self.bodies, self.touched, self.decides)
        return sum(map(len, kept))

    def decided(self, statement):
        """Return `True` if a condition on such values decides whether the statement runs."""
        function = statement.function
        return (function is not None and function in self.bodies) or any(
            head in self.decides for head in statement.controls
        )

    def touches(self, statement):
        """Return `True` if the statement uses such values."""
        return (
            statement in self.touched
            or not self.names.isdisjoint(statement.reads)
            or not self.results.isdisjoint(statement.calls)
            or any("." + name in statement.reads for name in self.results)
        )

    def _visit(self, statement):
        decided = self.decided(statement)
        if not decided and not self.touches(statement):
            return
        self.touched.add(statement)
        self.decides.add(statement)
        self.names |= statement.writes
        if statement.calls != {SHOWS}:
            self.names |= statement.receivers
        if decided:
            # A call that may not happen may change anything that it is given.
            self.names |= statement.reads if statement.calls else set()
        if statement.returns and statement.function is not None:
            self.results.add(statement.function.name)
        for name in statement.calls:
            for function in self.program.functions.get(name, ()):
                self.names |= {(function, parameter) for parameter in function.parameters}
                if decided:
                    self.bodies.add(function)


class ValueFlow:
    """Names and results that hold what one expression reads. Conditions on it do not count."""

    def __init__(self, program, statement, span):
        """`span` is the place of the expression in its statement; `None` if it is not known."""
        self.program, self.statement, self.span = program, statement, span
        self.names, self.results = set(), set()
        # Statements that use the value, in the order in which it reaches them.
        self.touched = {}
        pending = [statement]
        while pending:
            each = pending.pop()
            self.touched[each] = None
            names, results = self._passed_on(each)
            new = [*(names - self.names), *(results - self.results)]
            self.names |= names
            self.results |= results
            pending += [user for key in new for user in program.users.get(key, ())]

    def holds(self, node, statement):
        """Return `True` if a part of a statement uses the value."""
        return any(self.is_read(each, statement) for each in ast.walk(node))

    def is_read(self, node, statement):
        """Return `True` if an expression is the one that reads, a variable with the value, or a call that
        returns it.
        """
        if (
            statement is self.statement
            and isinstance(node, ast.expr)
            and self.span in (None, ((node.lineno, node.col_offset), _end(node)))
        ):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)):
            key = statement.key(node.id) if isinstance(node, ast.Name) else "." + node.attr
            return isinstance(node.ctx, ast.Load) and key in self.names
        return isinstance(node, ast.Call) and called(node.func) in self.results

    def assignment(self, node, statement):
        """Return the only statement that writes a variable, if it is an assignment of the value alone."""
        if not isinstance(node, ast.Name):
            return None
        writers = self.program.writers.get(statement.key(node.id), ())
        only = writers[0].node if len(writers) == 1 else None
        is_plain = isinstance(only, ast.Assign) and all(isinstance(each, ast.Name) for each in only.targets)
        return writers[0] if is_plain and self.holds(only.value, writers[0]) else None

    def _passed_on(self, statement):
        """Return the names and the results of functions that have the value because of a statement."""
        names, results = set(statement.writes), set()
        if statement.returns and statement.function is not None:
            results.add(statement.function.name)
        for node in statement.nodes():
            if not isinstance(node, ast.Call):
                continue
            named = {each.arg: each.value for each in node.keywords}
            is_put = isinstance(node.func, ast.Attribute) and node.func.attr not in LOOKUPS
            if is_put and any(self.holds(each, statement) for each in (*node.args, *named.values())):
                names |= statement.root(node.func.value)
            for function in self.program.functions.get(called(node.func), ()):
                given = {**dict(zip(function.positional, node.args, strict=False)), **named}
                held = {name for name, value in given.items() if self.holds(value, statement)}
                names |= {(function, name) for name in held & function.parameters}
        return names, results


def called(function):
    """Return the last part of a called function's name."""
    return getattr(function, "attr", None) or getattr(function, "id", None)


def _end(node):
    return (node.end_lineno, node.end_col_offset)
