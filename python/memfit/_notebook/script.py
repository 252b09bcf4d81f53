"""Runs cells of a notebook under a verb of the command, as one script in a separate process."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._api.command import Reply, ask
from .._api.report import Report
from .._api.verbs import result
from .._errors import CommandError, ScriptError
from ..results.cards import CardsReport
from ..results.check import CheckReport
from ..results.plan import PlanReport
from ..results.run import RunReport
from .cells import Cell, Source

RUNNER = Path(__file__).resolve().parents[1] / "_runner" / "cells.py"
KINDS: dict[str, type[Report]] = {"run": RunReport, "plan": PlanReport, "cards": CardsReport}
#: Magics that only concern the notebook; a run omits them without reporting it.
OF_NOTEBOOKS = ("%load_ext", "%matplotlib", "%pip", "%conda", "!pip", "%autoreload", "%config", "%memfit")
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+.*\n(?:    .*\n|  \[Previous line.*\n)*', re.M)


def run_cells(
    verb: str,
    sources: Sequence[Source],
    options: Sequence[str],
    progress: Callable[[str], object] | bool,
    results: Mapping[str, Report],
) -> tuple[Report, list[str]]:
    """Run cells; return the report, and the magics and shell lines that were left out.

    `results` are the variables that hold results of memfit: what made them is not run again.
    """
    with tempfile.TemporaryDirectory(prefix="memfit-") as folder:
        _write(sources, results, Path(folder))
        own_recording = verb == "run" and not any(re.match(r"-o|--output\b", option) for option in options)
        recording = [f"--output={folder}/run.memfit"] if own_recording else []
        command = [sys.executable, str(RUNNER), folder]
        # The notebook's backend draws into the notebook.
        env = {"MPLBACKEND": "Agg"}
        reply = ask(verb, [*recording, *options, "--", *command], env=env, progress=progress)
        report = _read(verb, reply, folder, own_recording)
        _demand_reached(report, Path(folder), sources[-1].number)
        left_out = Path(folder, "left-out")
        names = left_out.read_text(encoding="utf-8").split("\n") if left_out.is_file() else []
    return report, sorted({name for name in names if name and name not in OF_NOTEBOOKS})


def _write(sources: Sequence[Source], results: Mapping[str, Report], folder: Path) -> None:
    """Write the cells, each under the name that its lines have in reports."""
    cells = []
    for source in sources:
        file = folder / f"In[{source.number}]"
        file.write_text(source.text, encoding="utf-8")
        cells.append({"number": source.number, "file": str(file), "code": source.code, "lines": source.lines})
    given = {"path": sys.path, "cells": cells}
    (folder / "results.pickle").write_bytes(pickle.dumps(dict(results)))
    (folder / "cells.json").write_text(json.dumps(given), encoding="utf-8")


def _read(verb: str, reply: Reply, folder: str, own_recording: bool) -> Report:
    """Return the report with cells named in place of the files that they were written to."""
    outline = None
    if reply.document is not None:
        document = json.loads(json.dumps(reply.document).replace(f"{folder}/", ""))
        if (oom := document.get("oom")) is not None:
            oom["stack"] = [line for line in oom["stack"] if str(RUNNER) not in line]
        if (exception := (document.get("script") or {}).get("exception")) is not None:
            exception["traceback"] = without_frames(exception["traceback"], lambda file: file == str(RUNNER))
        if own_recording:
            document["recording"] = None
            outline = Report(folder=folder)._outline("run.memfit")
        reply = replace(reply, document=document)
    words = without_frames(_named(reply.last_words, folder), lambda file: file == str(RUNNER))
    reply = replace(
        reply, text=_named(reply.text, folder), message=_named(reply.message, folder), last_words=words
    )
    report = result(KINDS[verb], reply)
    if own_recording:
        # The recording goes with the folder.
        vars(report)["timeline"] = outline
    return report


def _named(text: str, folder: str) -> str:
    """Name cells in place of their files, and remove the frames of the runner."""
    kept = [line for line in text.splitlines(keepends=True) if f"at {RUNNER}:" not in line]
    return "".join(kept).replace(f"{folder}/", "")


def without_frames(traceback: str, is_dropped: Callable[[str], bool]) -> str:
    """Return a traceback without the frames of some files."""
    return FRAME.sub(lambda frame: "" if is_dropped(frame["file"]) else frame[0], traceback)


def _demand_reached(report: Report, folder: Path, last: int) -> None:
    """Raise if the run ended before the last cell began: its answer is about other cells."""
    reached = int((folder / "reached").read_text() or 0) if (folder / "reached").is_file() else last
    fits = getattr(report, "fits", None)
    if reached != last and fits:
        raise CommandError(
            f"all steps ran in In[{reached}], before In[{last}] began",
            hint=f"leave that cell out with `--skip {reached}` or `# memfit: skip` as its first line, run this cell "
            "with `--alone`, or raise `--steps`",
            report=report,
        )


def check_cells(
    cells: Sequence[Cell], options: Sequence[str], progress: Callable[[str], object] | bool
) -> CheckReport:
    """Check cells; each finding has the number of its cell."""
    with tempfile.TemporaryDirectory(prefix="memfit-") as folder:
        by_number = {cell.number: cell.text for cell in cells}
        code: list[dict[str, Any]] = [
            {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": number, "source": text}
            for number in range(1, max(by_number, default=0) + 1)
            for text in [by_number.get(number, "")]
        ]
        file = Path(folder, "notebook.ipynb")
        document = {"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        file.write_text(json.dumps(document), encoding="utf-8")
        reply = ask("check", [*options, "--", str(file)], progress=progress)
        if reply.document is not None:
            named = json.loads(json.dumps(reply.document).replace(f"{folder}/", ""))
            reply = replace(reply, document=named, text=_named(reply.text, folder))
        return result(CheckReport, reply, os.getcwd())


class CellError(ScriptError):
    """A cell that failed; a notebook shows the frames of cells."""

    def _render_traceback_(self) -> list[str]:
        return without_frames(str(self), lambda file: not file.startswith("In[")).splitlines()
