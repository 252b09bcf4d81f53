"""Runs source files with changed text, to try a fix without modifying the user's files.

Imports of such a file get the changed text from the file's own loader. A script is not imported: Python runs
it from its path, after asking the path hooks for a loader. One of these hooks is installed here.
"""

import ast
import importlib.machinery
import importlib.util
import json
import linecache
import os
import sys


def arm(path):
    """Read the changed files from a JSON object at `path`: file names with their new text."""
    with open(path, encoding="utf-8") as file:
        changed = {os.path.realpath(name): text for name, text in json.load(file).items()}
    _change_imports(changed)
    sys.path_hooks.insert(0, lambda entry: _Script(entry, changed))
    # Drop cached entries, which were made without the hook.
    for name in changed:
        sys.path_importer_cache.pop(name, None)


def _change_imports(changed):
    loader = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def get_changed_code(self, fullname):
        text = changed.get(os.path.realpath(self.path))
        if text is None:
            return get_code(self, fullname)
        _show(self.path, text)
        return self.source_to_code(text.encode(), self.path)

    loader.get_code = get_changed_code


def _show(path, text):
    """Make tracebacks and `inspect` show the changed lines."""
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)


class _Script:
    """Finder and loader of one script as `__main__`."""

    def __init__(self, entry, changed):
        text = changed.get(os.path.realpath(entry))
        if text is None or not os.path.isfile(entry):
            raise ImportError("not a changed script")
        self.entry = entry
        self.text = text

    def find_spec(self, name, target=None):
        if name != "__main__":
            return None
        return importlib.util.spec_from_file_location(name, self.entry, loader=self)

    def create_module(self, spec):
        return None

    def is_package(self, name):
        return False

    def get_code(self, name):
        # As if Python had run it from its path: imports start in its folder, and it has no module name by
        # which a child process would look for it.
        sys.path[:] = [
            os.path.dirname(os.path.abspath(path)) if path == self.entry else path for path in sys.path
        ]
        _show(self.entry, self.text)
        tree = ast.parse(self.text, self.entry)
        place = _behind_what_comes_first(tree)
        statement = ast.parse("__spec__ = None").body[0]
        tree.body.insert(place, statement)
        return compile(tree, self.entry, "exec", dont_inherit=True)

    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)


def _behind_what_comes_first(tree):
    """Return the first position for a statement: behind the docstring and `__future__` imports."""
    place = 1 if ast.get_docstring(tree, clean=False) is not None else 0
    for statement in tree.body[place:]:
        if not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
        place += 1
    return place
