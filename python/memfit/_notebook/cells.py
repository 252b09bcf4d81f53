"""The cells of a notebook as Python that runs outside of it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Cell magics whose body runs in the notebook's own process.
BODY_MAGICS = ("capture", "memit", "prun", "time", "timeit")
VERBS = tuple(f"memfit.{verb}" for verb in ("cards", "check", "explain", "fits", "plan", "record", "run"))
CELL_MAGIC = re.compile(r"\A\s*%%(\w+)([^\n]*)\n?")
#: Comment at the start of a cell that is left out of runs.
SKIP = re.compile(r"\A\s*#\s*memfit:\s*skip\b")


@dataclass
class Cell:
    """A cell that ran: its text, and its number in the notebook."""

    number: int
    text: str
    #: The notebook's own name of the cell, which stays when it is run again.
    identity: str | None = None


@dataclass(frozen=True)
class Source:
    """A cell as Python: what `compile` takes, with the cell's own line numbers."""

    number: int
    text: str
    lines: list[int]
    code: str


class History:
    """The cells that ran without an error, in the order in which they first ran."""

    def __init__(self) -> None:
        self._cells: list[Cell] = []

    def add(self, cell: Cell) -> None:
        """Add a cell. The text of one that ran before is replaced: the notebook has it in one place."""
        for known in self._cells:
            if cell.identity is not None and known.identity == cell.identity:
                known.number, known.text = cell.number, cell.text
                return
        self._cells.append(cell)

    def cells(self, skipped: Sequence[int] = ()) -> list[Cell]:
        """Return the cells to run, without those that are to be skipped."""
        return [cell for cell in self._cells if cell.number not in skipped and not SKIP.match(cell.text)]


def python(cell: Cell, transform: Callable[[str], str]) -> Source | None:
    """Return a cell as Python, or None if nothing of it runs in the notebook's own process.

    `transform` turns magics and shell lines into calls, as IPython's own does.
    """
    text = cell.text
    if magic := CELL_MAGIC.match(text):
        if magic[1] not in BODY_MAGICS:
            return None
        # An empty line in its place: the others keep their numbers.
        text = text[: magic.start()] + "\n" * magic[0].count("\n") + text[magic.end() :]
    code = transform(text)
    if not code.strip():
        return None
    return Source(cell.number, cell.text, _lines(text, code), code)


def asks_memfit(source: Source) -> str | None:
    """Return the verb that a cell calls, such as `memfit.run`: it would start a run within the run."""
    with contextlib.suppress(SyntaxError):
        for node in ast.walk(ast.parse(source.code)):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called) in VERBS:
                return ast.unparse(called)
    return None


def _lines(before: str, after: str) -> list[int]:
    """Return the line of the cell for each line of the Python."""
    old, new = before.splitlines(), after.splitlines()
    lines, last = [], 1
    for _, first, end, start, stop in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(start, stop):
            last = min(first + (place - start), max(end - 1, first)) + 1
            lines.append(last)
    return lines
