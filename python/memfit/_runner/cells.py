"""Runs cells of a notebook as one script, with a file name for each cell. Imports memfit only if a variable
of earlier cells holds one of its results.
"""

import ast
import asyncio
import inspect
import json
import os
import pickle
import re
import runpy
import shlex
import sys
from typing import Any


class Shell:
    """Stands in for IPython: runs what a magic's statement computes, and leaves out the rest."""

    def __init__(self, space: dict[str, Any], left_out: str) -> None:
        self.user_ns = space
        self._left_out = left_out

    def run_line_magic(self, name: str, line: str, *_: object, **__: object) -> object:
        if name in ("time", "timeit", "prun", "memit"):
            exec(compile(without_options(line), f"%{name}", "exec"), self.user_ns)
        elif name == "run":
            words = shlex.split(line)
            files = [place for place, word in enumerate(words) if not word.startswith("-")]
            if files:
                sys.argv[:] = words[files[0] :]
                self.user_ns.update(runpy.run_path(words[files[0]], run_name="__main__"))
        elif name == "cd" and line:
            os.chdir(os.path.expanduser(line.strip().strip("'\"")))
        elif name in ("env", "set_env") and ("=" in line or " " in line):
            key, _sep, value = line.partition("=" if "=" in line else " ")
            os.environ[key.strip()] = value.strip()
        else:
            self._leave_out(f"%{name}")
        return None

    def run_cell_magic(self, name: str, *_: object) -> None:
        self._leave_out(f"%%{name}")

    def system(self, command: str) -> None:
        self._leave_out(f"!{command.split(maxsplit=1)[0] if command.strip() else ''}")

    def getoutput(self, command: str, *_: object, **__: object) -> list[str]:
        self.system(command)
        return []

    def __getattr__(self, name: str) -> object:
        # All other calls of IPython do nothing.
        if name.startswith("__"):
            raise AttributeError(name)
        self._leave_out(f"get_ipython().{name}")
        return lambda *_, **__: None

    def _leave_out(self, name: str) -> None:
        with open(self._left_out, "a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def without_options(line: str) -> str:
    """Return the statement of a line such as `-n 10 f(x)`."""
    return re.sub(r"\A(?:\s*-(?:[nrp]\s*\d+|[oqct]\b))+", "", line).strip()


def run(cell: dict[str, Any], space: dict[str, Any]) -> None:
    tree = ast.parse(cell["code"], cell["file"])
    lines = cell["lines"]
    for node in ast.walk(tree):
        for attribute in ("lineno", "end_lineno"):
            line = getattr(node, attribute, None)
            if line is not None and line <= len(lines):
                setattr(node, attribute, lines[line - 1])
    code = compile(tree, cell["file"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, space))
    else:
        exec(code, space)


def main() -> None:
    folder = sys.argv[1]
    with open(os.path.join(folder, "cells.json"), encoding="utf-8") as text:
        given = json.load(text)
    entries = given["path"]
    sys.path[:] = [*entries, *(entry for entry in sys.path[1:] if entry not in entries)]
    sys.argv[:] = [""]
    space = sys.modules["__main__"].__dict__
    with open(os.path.join(folder, "results.pickle"), "rb") as file:
        space.update(pickle.load(file))
    shell = Shell(space, os.path.join(folder, "left-out"))
    space.update(get_ipython=lambda: shell, display=lambda *_, **__: None)
    for cell in given["cells"]:
        # Report to the notebook how far the cells ran.
        with open(os.path.join(folder, "reached"), "w", encoding="utf-8") as text:
            text.write(str(cell["number"]))
        run(cell, space)


if __name__ == "__main__":
    main()
