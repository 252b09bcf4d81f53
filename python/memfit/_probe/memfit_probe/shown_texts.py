"""Finds out if a text is only shown: printed, logged, or the name of a saved file.

The digits of an unknown value are not followed. Where a text may become a number, a key or a condition, a
further run has other digits. So a text is only shown if the source, from the expression that makes it on,
leaves no other use: each step is in a table here, and anything else is another use.
"""

import ast
import functools
import linecache
import os

from . import flows
from .oom import is_library

# Functions and methods that show or save what they are given, ...
SHOWING_NAMES = """
    add_row add_scalar add_scalars add_text annotate critical debug display dump echo error exception info legend
    log log_dict log_metric log_metrics log_text notice pprint print report rule save save_checkpoint save_model
    save_pretrained savefig secho set_description set_description_str set_postfix set_postfix_str set_title
    set_xlabel set_ylabel success suptitle title trace warn warning write writelines writerow writerows xlabel
    ylabel
"""
SHOWING = frozenset(SHOWING_NAMES.split())
# ... and those whose result is a text, or a container, with it.
PASSING_NAMES = """
    OrderedDict abspath center colored dict dumps encode escape expandtabs fill format indent join list ljust
    lower lstrip pformat replace repr reversed rjust rstrip str strip tuple upper wrap zfill
"""
PASSING = frozenset(PASSING_NAMES.split())
# Those of the former that name a file after a text.
NAMING = frozenset(("save", "save_checkpoint", "save_model", "save_pretrained", "savefig"))
# Functions and methods of installed packages whose result is a text of what they are given, or a number's.
MAKING_NAMES = """
    array2string array_repr array_str format join pformat repr str tabulate to_csv to_html to_json to_latex
    to_markdown to_string to_yaml
"""
MAKING = frozenset(MAKING_NAMES.split())
# Expressions that have the value of a part, or contain it.
CONTAINERS = (
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Tuple,
    ast.List,
    ast.Starred,
    ast.keyword,
    ast.Await,
    ast.ListComp,
    ast.GeneratorExp,
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
# Uses of a text. It may be returned, in addition to being shown, or be part of the name of a file.
SHOWN, NAMED, RETURNED, OTHER = "shown", "named", "returned", "other"
# That of a pickle.
SAVED = "saved"
# Functions through which a text is returned.
MAX_RETURNS = 6
SITE = f"{os.sep}site-packages{os.sep}"
# End of the path of the module that saves checkpoints.
SAVES = os.path.join("torch", "serialization.py")


def use_of_text(frame):
    """Return the use of the text that a frame makes: `SHOWN`, `NAMED` or `OTHER`. Installed packages show
    theirs, unless the script calls them for the text.
    """
    frame, packages = _own(frame)
    if frame is None or (packages and not _asks_for_text(frame)):
        return SHOWN
    return _use_from(frame)


def use_of_pickle(frame):
    """Return the use of the pickle that a frame makes: `SHOWN` if it is a checkpoint, or goes to a file."""
    frame, packages = _own(frame)
    if packages:
        return SHOWN if any(path.endswith(SAVES) for path in packages) else OTHER
    return OTHER if frame is None else _use_from(frame)


def _own(frame):
    """Return the innermost frame of the user's, and the files of installed packages inside of it."""
    packages = []
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(flows.PROBE) and not is_library(path):
            break
        if SITE in path and not path.startswith(flows.PROBE):
            packages.append(path)
        frame = frame.f_back
    return frame, packages


def _asks_for_text(frame):
    """Return `True` if the expression that a frame evaluates has a text as its value."""
    source = source_of(frame.f_code.co_filename)
    node = source.at(frame.f_code, frame.f_lineno, frame.f_lasti)
    if isinstance(node, ast.stmt):
        # Only the statement is known.
        return any(map(_makes_text, ast.walk(node)))
    while isinstance(node, ast.Constant):
        # A part of an f-string has the place of the whole in Python 3.11.
        node = source.parents.get(node)
    return _makes_text(node)


def _makes_text(node):
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and isinstance(node.left, (ast.Constant, ast.JoinedStr))
    if isinstance(node, ast.Call):
        return flows.called(node.func) in MAKING
    return isinstance(node, (ast.JoinedStr, ast.FormattedValue))


def _use_from(frame):
    function = None
    for _ in range(MAX_RETURNS):
        use = _use(frame.f_code, frame.f_lineno, frame.f_lasti, function)
        if use is not RETURNED:
            return use
        function = frame.f_code.co_name
        outer, packages = _own(frame.f_back)
        if packages or outer is None:
            return SHOWN if packages else OTHER
        function = function if outer is frame.f_back else None
        frame = outer
    return OTHER


@functools.lru_cache(maxsize=4096)
def _use(code, line, instruction, function):
    """Find the use of a text that an instruction makes, or that a function of the user's returns to it."""
    source = source_of(code.co_filename)
    node = source.at(code, line, instruction)
    if node is None:
        return OTHER
    if isinstance(node, ast.stmt):
        return source.use_in_statement(node)
    if isinstance(node, ast.Call) and flows.called(node.func) != function:
        if flows.called(node.func) in SHOWING:
            return _shown_by(node)
        if flows.called(node.func) not in PASSING and flows.called(node.func) not in MAKING:
            return OTHER
    return source.use(node)


@functools.lru_cache(maxsize=256)
def source_of(path):
    """Return the source of a file."""
    return Source(path)


def _shown_by(call):
    return NAMED if flows.called(call.func) in NAMING else SHOWN


class Source:
    """The syntax tree of a file, with the parent of each node."""

    def __init__(self, path):
        self.parents = {}
        try:
            self.tree = ast.parse("".join(linecache.getlines(path)))
        except (SyntaxError, ValueError, RecursionError):
            self.tree = ast.Module([], [])
        for node in ast.walk(self.tree):
            self.parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))

    def at(self, code, line, instruction):
        """Return the expression that an instruction evaluates; its statement before Python 3.11."""
        span = flows.span(code, instruction)
        if span is None:
            found = [
                node
                for node in self.parents
                if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
            ]
            return min(found, key=lambda node: node.end_lineno - node.lineno, default=None)
        begin, end = span
        # Parents come before their children, so that the last one is the smallest.
        found = None
        for node in self.parents:
            if isinstance(node, ast.expr) and _begin(node) <= begin and end <= _end(node):
                found = node
        return found

    def use_in_statement(self, statement):
        """Return the use of a text of which only the statement is known."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and flows.called(call.func) in SHOWING:
            return _shown_by(call)
        return SHOWN if isinstance(statement, (ast.Raise, ast.Assert)) else OTHER

    def use(self, node, seen=()):
        """Return the use of an expression's value."""
        while True:
            parent = self.parents.get(node)
            if self._contains(parent, node):
                node = parent
            elif isinstance(parent, ast.Attribute):
                # A method of the text.
                node = self.parents[parent]
                if parent.attr not in PASSING or getattr(node, "func", None) is not parent:
                    return OTHER
            elif isinstance(parent, ast.Call):
                if flows.called(parent.func) in SHOWING:
                    return _shown_by(parent)
                if flows.called(parent.func) not in PASSING:
                    return OTHER
                node = parent
            else:
                return self._use_by(parent, node, seen)

    def _contains(self, parent, node):
        """Return `True` if the value of an expression contains that of its part, or is the same."""
        if isinstance(parent, ast.BinOp):
            return isinstance(parent.op, (ast.Add, ast.Mod))
        if isinstance(parent, ast.IfExp):
            return node is not parent.test
        if isinstance(parent, ast.Dict):
            return node not in parent.keys
        if isinstance(parent, ast.DictComp):
            return node is parent.value
        return isinstance(parent, CONTAINERS)

    def _use_by(self, statement, node, seen):
        if isinstance(statement, (ast.Expr, ast.Raise)):
            return SHOWN
        if isinstance(statement, ast.Assert):
            return SHOWN if node is statement.msg else OTHER
        if isinstance(statement, ast.Return):
            return RETURNED
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if all(isinstance(target, ast.Name) for target in targets):
                return self._use_of_names({target.id for target in targets}, statement, seen)
        return OTHER

    def _use_of_names(self, names, statement, seen):
        """Return the use of a text in variables, from all places that read them."""
        scope = statement
        while not isinstance(scope, SCOPES):
            scope = self.parents[scope]
        uses = {SHOWN}
        for node in ast.walk(scope):
            if isinstance(node, (ast.Global, ast.Nonlocal)) and not names.isdisjoint(node.names):
                return OTHER
            read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
            if read and node not in seen:
                uses.add(self.use(node, (*seen, node)))
        return next(each for each in (OTHER, RETURNED, NAMED, SHOWN) if each in uses)


def _begin(node):
    return (node.lineno, node.col_offset)


def _end(node):
    return (node.end_lineno, node.end_col_offset)
