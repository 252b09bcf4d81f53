"""`%memfit` and `%%memfit`, and the hint after an out-of-memory error."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from .._api.command import ask
from .._api.report import Report
from .._api.verbs import result
from .._errors import CommandError, MemfitError, ScriptError
from ..results.check import CheckReport
from ..results.explain import ExplainReport
from .cells import Cell, History, asks_memfit, python
from .held import held_bytes, is_out_of_memory
from .script import KINDS, CellError, check_cells, run_cells

USAGE = """\
%%memfit run|plan|cards [options]   runs this cell, with the cells before it
%memfit run|plan|cards [options]    runs the cells so far; with `-- python train.py`, that command
%memfit check [options] [path]      checks the cells so far, or a path
%memfit explain FILE [options]      explains a recording or a snapshot
also: --alone (without the cells before), --skip 3,5 (without these), --into NAME (a variable for the result)"""
#: The attribute under which a shell has its extension.
ATTRIBUTE = "_memfit_extension"


def load(shell: Any) -> None:
    """Register the magics and the hook, once."""
    unload(shell)
    extension = Extension(shell)
    setattr(shell, ATTRIBUTE, extension)
    shell.register_magic_function(extension.magic, "line_cell", "memfit")
    shell.events.register("post_run_cell", extension.after)


def unload(shell: Any) -> None:
    """Take magics and hook away."""
    extension = vars(shell).pop(ATTRIBUTE, None)
    if extension is not None:
        shell.events.unregister("post_run_cell", extension.after)
        for magics in shell.magics_manager.magics.values():
            magics.pop("memfit", None)


class Extension:
    """The extension of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._history = History()
        self._told = False
        failed = getattr(shell.history_manager, "exceptions", None) or {}
        for number, text in enumerate(shell.history_manager.input_hist_raw):
            # The cell that loads the extension comes with its own event.
            if text.strip() and number not in failed and number != self._number():
                self._history.add(Cell(number, text))

    def after(self, result: Any) -> None:
        """Note a cell that ran, or help with one that ran out of memory."""
        if result.success:
            info = result.info
            if info is not None and info.store_history and info.raw_cell.strip():
                identity = getattr(info, "cell_id", None)
                self._history.add(Cell(result.execution_count, info.raw_cell, identity))
            return
        error = result.error_in_exec
        if error is not None and is_out_of_memory(error):
            from .._core import format_size

            if held := held_bytes(error, self._shell.user_ns):
                print(
                    f"memfit: the traceback above and the notebook's outputs hold at least {format_size(held)} of GPU "
                    "memory; `memfit.release()` frees it"
                )

    def magic(self, line: str, cell: str | None = None) -> Report | None:
        """Run a verb of memfit on the notebook's cells, or on a file or command."""
        words = shlex.split(line)
        if not words or words[0] in ("-h", "--help", "help"):
            print(USAGE)
            return None
        verb, options = words[0], words[1:]
        alone, options = _flag(options, "--alone")
        into, options = _valued(options, "--into")
        skipped, options = _valued(options, "--skip")
        if into is not None and not into.isidentifier():
            raise _usage(f"`--into` needs the name of a variable, not {into!r}")
        numbers = _numbers(skipped or "")
        try:
            report = self._answer(verb, options, cell, alone, numbers)
        except ScriptError as error:
            raise CellError(
                error.message, hint=error.hint, report=error.report, output=error.output
            ) from None
        except MemfitError as error:
            raise _usage(str(error)) from None
        finally:
            self._clear(cell is not None)
        if into is not None:
            self._shell.user_ns[into] = report
        return report

    def _answer(
        self, verb: str, options: list[str], cell: str | None, alone: bool, skipped: list[int]
    ) -> Report:
        if verb == "explain" and cell is None:
            return result(ExplainReport, ask(verb, options, progress=self._progress()))
        if verb == "check":
            if cell is None and any(os.path.exists(word) for word in options):
                return result(CheckReport, ask(verb, options, progress=self._progress()))
            return check_cells(self._cells(cell, alone, skipped), options, self._progress())
        if verb == "explain":
            raise CommandError(
                "`explain` reads a file and takes no cell", hint="use `%memfit explain FILE`, with one `%`"
            )
        if verb not in KINDS:
            raise CommandError(f"`%memfit` has no verb {verb!r}", hint=USAGE)
        if "--" in options:
            if cell is not None:
                raise CommandError(
                    "`%%memfit` runs the cell and takes no command",
                    hint="use `%memfit` for a command, or leave out `--`",
                )
            return result(KINDS[verb], ask(verb, options, progress=self._progress()))
        transform = self._shell.input_transformer_manager.transform_cell
        cells = self._cells(cell, alone, skipped)
        sources = [source for each in cells if (source := python(each, transform)) is not None]
        asking = {source.number: asked for source in sources[:-1] if (asked := asks_memfit(source))}
        sources = [source for source in sources if source.number not in asking]
        if not sources:
            raise CommandError(
                "there is no earlier cell to run", hint="run the notebook's cells first, then this one"
            )
        space = self._shell.user_ns
        results = {name: value for name, value in space.items() if isinstance(value, Report)}
        report, left_out = run_cells(verb, sources, options, self._progress(), results)
        left_out += [f"In[{number}] ({asked})" for number, asked in asking.items()]
        if left_out:
            print(f"memfit: left out, since a run has no notebook: {', '.join(left_out)}")
        return report

    def _cells(self, cell: str | None, alone: bool, skipped: list[int]) -> list[Cell]:
        before = [] if alone else self._history.cells(skipped)
        return before if cell is None else [*before, Cell(self._number(), f"\n{cell}")]

    def _number(self) -> int:
        """Return the number of the cell that is running; releases count it at different moments."""
        return len(self._shell.history_manager.input_hist_raw) - 1

    def _progress(self) -> Any:
        """Return where progress goes: in a notebook to one line, in a terminal to the standard error."""
        return self._one_line if hasattr(self._shell, "kernel") else True

    def _one_line(self, line: str) -> None:
        self._told = True
        sys.stdout.write(f"\r{line.rstrip():<80.80}")
        sys.stdout.flush()

    def _clear(self, all_of_it: bool) -> None:
        """Remove the progress. `all_of_it` clears the whole output of a cell that printed nothing else."""
        if not self._told:
            return
        if all_of_it:
            from IPython.display import clear_output

            clear_output()
        else:
            sys.stdout.write("\r" + " " * 80 + "\r")
        self._told = False


def _flag(words: list[str], name: str) -> tuple[bool, list[str]]:
    return name in words, [word for word in words if word != name]


def _numbers(text: str) -> list[int]:
    """Return the numbers of cells, as in `3,5-7`."""
    numbers: list[int] = []
    for word in filter(None, map(str.strip, text.split(","))):
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise _usage(f"`--skip` needs numbers of cells, as in `--skip 3,5-7`, not {word!r}")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _valued(words: list[str], name: str) -> tuple[str | None, list[str]]:
    for place, word in enumerate(words):
        if word == name:
            if place + 1 == len(words):
                raise _usage(f"`{name}` needs a value")
            return words[place + 1], words[:place] + words[place + 2 :]
        if word.startswith(f"{name}="):
            return word.partition("=")[2], words[:place] + words[place + 1 :]
    return None, words


def _usage(message: str) -> Exception:
    """Return the error that IPython shows as one message."""
    from IPython.core.error import UsageError

    error: Exception = UsageError(message)
    return error
