"""The verbs as Python functions: typed results, errors, and nothing imported that takes long."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import memfit
import pytest
from memfit import _core
from memfit._api import verbs
from memfit._api.decode import encode
from memfit._api.options import options, percent, seconds, size, words
from runs import invoke

SCRIPT = Path(__file__).with_name("api_script.py")
TRAIN = [sys.executable, str(SCRIPT)]
#: Options that belong to the command line alone: the functions return the answer in every form, and run where
#: their caller does.
ONLY_COMMANDS = {"format", "json", "color", "quiet", "help", "diff", "container"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[memfit.RunReport, Path]:
    """A run that fits, with its recording."""
    path = tmp_path_factory.mktemp("recorded") / "run.memfit"
    report = memfit.run(TRAIN, gpu="t4", output=path.name, cwd=path.parent, progress=False)
    return report, path


@pytest.fixture(scope="module")
def refused() -> memfit.RunReport:
    """A run that runs out of memory."""
    command = [*TRAIN, "--batch-size", "131072"]
    return memfit.run(command, gpu="t4", memory=2 * 2**30, prove=False, progress=False)


def test_a_run_is_a_typed_result(recorded):
    report, path = recorded
    assert report.verdict == "fits"
    assert report.fits is True
    assert bool(report)
    assert report.peak.device_upper + report.headroom == report.device.capacity
    assert sum(report.at_peak.by_category.values()) == report.at_peak.reserved
    assert report.recording == path.name
    assert str(report).startswith("FITS  for the 3 steps that ran, on a virtual Tesla T4")
    assert repr(report).startswith("<RunReport: fits on Tesla T4 (14.56 GiB) for 3 steps: at most ")
    assert json.loads(report.to_json()) == report.raw
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.verdict = "oom"
    assert pickle.loads(pickle.dumps(report)) == report


def test_out_of_memory_is_a_result(refused):
    assert refused.verdict == "oom"
    assert refused.fits is False
    assert not refused
    assert refused.oom.requested == 131072 * 1024 * 4
    assert refused.fixes
    assert str(refused).startswith("OUT OF MEMORY")


def test_every_field_of_a_report_has_one_and_nothing_more(recorded, refused, tmp_path):
    (tmp_path / "train.py").write_text("losses = []\nfor x in loader:\n    losses.append(model(x))\n")
    for report in [*recorded[:1], refused, memfit.explain(recorded[1]), memfit.check(tmp_path)]:
        assert encode(report) == report.raw


def test_a_newer_field_does_no_harm_and_a_missing_one_is_none(recorded):
    document = json.loads(recorded[0].to_json())
    document["of_the_future"] = document["peak"]["of_the_future"] = {"a": [1]}
    del document["cause"], document["fixes"], document["time"]["clock"]
    report = memfit.RunReport.from_json(json.dumps(document))
    assert (report.cause, report.fixes, report.time.clock) == (None, (), None)
    assert report.raw["peak"]["of_the_future"] == {"a": [1]}
    assert report.peak == recorded[0].peak
    with pytest.raises(memfit.MemfitError, match=r"memfit\.plan/1"):
        memfit.PlanReport.from_json(json.dumps(document))
    del document["peak"]
    with pytest.raises(memfit.MemfitError, match="peak"):
        memfit.RunReport.from_json(json.dumps(document))


def test_unknown_is_a_result_and_is_not_called_fitting(recorded):
    document = {**recorded[0].raw, "verdict": "unknown"}
    report = memfit.RunReport.from_json(json.dumps(document))
    assert report.fits is None
    assert not report


@pytest.mark.parametrize("verb", ["run", "plan", "cards", "explain", "check"])
def test_keywords_are_the_options_of_the_verb(verb):
    # An example's line may be wrapped before an option of the script.
    helped = invoke([verb, "--help"]).stdout.partition("Examples:")[0]
    stated = set(re.findall(r"^\s+(?:-\w, )?--([a-z-]+)", helped, re.M)) - ONLY_COMMANDS
    function = getattr(verbs, verb)
    keywords = {name.replace("_", "-") for name in function.__kwdefaults__} - {"cwd", "env", "progress"}
    # `prove=False` is `--no-prove` of a run; the page of a cause is not a report.
    renamed = {"no-prove": "prove"} if verb == "run" else {}
    assert keywords - {"diff"} == {renamed.get(name, name) for name in stated} - {"cause"}


@pytest.mark.parametrize(
    ("call", "said", "hint"),
    [
        (lambda: memfit.run(["python", "x.py"], gpu="gtx-9"), "no GPU named `gtx-9`", "memfit gpus"),
        (
            lambda: memfit.run(["python", "x.py"], gpu="t4", clock="sun"),
            "invalid value 'sun' for '--clock",
            None,
        ),
        (lambda: memfit.plan(["python", "x.py"], gpu="gtx-9"), "no GPU named `gtx-9`", "memfit gpus"),
        (
            lambda: memfit.cards(["python", "x.py"], min_memory="9 TiB"),
            "no GPU in the catalogue",
            "memfit gpus",
        ),
        (lambda: memfit.explain("nothing.memfit"), "`nothing.memfit` cannot be read", None),
        (lambda: memfit.check("nothing.py"), "nothing.py", None),
    ],
)
def test_a_question_without_an_answer_raises(capfd, call, said, hint):
    with pytest.raises(memfit.CommandError) as raised:
        call()
    error = raised.value
    assert said in error.message
    assert "Usage:" not in error.message
    assert hint is None or hint in error.hint
    assert not isinstance(error, memfit.ScriptError)
    # The error is in the exception, and not printed as well.
    assert "error:" not in capfd.readouterr().err


def test_a_script_that_fails_raises_with_its_traceback(tmp_path, capfd):
    (tmp_path / "train.py").write_text("\nraise ValueError('by itself')\n")
    with pytest.raises(memfit.ScriptError) as raised:
        memfit.run([sys.executable, "train.py"], gpu="t4", cwd=tmp_path)
    assert raised.value.report.script.exit_status == 1
    assert 'train.py", line 2, in <module>\n    raise ValueError(' in str(raised.value)
    assert "ValueError: by itself" in raised.value.output
    assert "the script's last output" in capfd.readouterr().err


def test_nothing_imports_torch():
    program = (
        "import sys, memfit\n"
        "try: memfit.run(['python', 'x.py'], gpu='gtx-9')\n"
        "except memfit.CommandError: pass\n"
        "memfit.check, memfit.fits, memfit.record, memfit.RunReport, memfit.results\n"
        "print([name for name in ('torch', 'numpy', 'IPython') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_modules_of_the_current_folder_are_not_memfits(tmp_path):
    (tmp_path / "signal.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "clean.py").write_text("x = 1\n")
    assert memfit.check("clean.py", cwd=tmp_path).files == 1


def test_an_interrupt_ends_the_script_too(tmp_path):
    (tmp_path / "waits.py").write_text(
        "import os, pathlib, signal\npathlib.Path('pid').write_text(str(os.getpid()))\nsignal.pause()\n"
    )
    program = "import memfit, sys\nmemfit.run([sys.executable, 'waits.py'], gpu='t4')"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert process.poll() is None
    # As a notebook does: to this process alone.
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_arguments_become_options():
    assert options(gpu="t4", steps=0, no_prove=True, keep=False, plan=None, output=Path("a b")) == [
        "--gpu=t4",
        "--steps=0",
        "--no-prove",
        "--output=a b",
    ]
    assert options(without=["a", "b"]) == ["--without=a", "--without=b"]
    assert (size(3), size("2 GiB"), size(None)) == ("3 B", "2 GiB", None)
    assert (seconds(90), seconds(0), seconds(0.2), seconds("2m")) == ("90s", "0", "1s", "2m")
    assert (percent(0.03), percent("5%")) == ("3%", "5%")
    assert words("python 'my train.py' --x") == ["python", "my train.py", "--x"]
    with pytest.raises(ValueError, match="empty"):
        words([])


def test_the_timeline_is_the_recordings(recorded):
    report, path = recorded
    done = invoke(["convert", str(path), "-", "--to", "csv", "--rows", "events"])
    events = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row["allocated"]]
    assert report.timeline["events"] > 100
    assert max(point[1] for point in report.timeline["points"]) == report.peak.allocated
    assert max(point[2] for point in report.timeline["points"]) == report.peak.reserved
    assert max(int(row["allocated"]) for row in events) == report.peak.allocated
    assert len(report.timeline["steps"]) == 3
    few = _core.outline(path, points=7)
    assert len(few["points"]) == 7
    assert max(point[1] for point in few["points"]) == report.peak.allocated


class Page(HTMLParser):
    """The elements and the text of a page; fails on what is never closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.open.append(tag)
        assert not any(name.startswith("on") or (value or "").startswith("http") for name, value in attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_verdict_composition_and_timeline(recorded, refused):
    page = Page(recorded[0]._repr_html_())
    for text in ["fits", "for the 3 steps that ran", "activations", "non-PyTorch", "headroom", "Text report"]:
        assert text in page.text
    held = {name: bytes_ for name, bytes_ in recorded[0].at_peak.by_category.items() if bytes_}
    # A piece for each category, and for what is outside the allocator, surely and perhaps.
    assert page.seen["i"] == len(held) + 2
    assert page.seen["svg"] == 1
    page = Page(refused._repr_html_())
    assert "512 MiB more were requested" in page.text
    assert refused.fixes[0].lever in page.text
    assert "svg" not in page.seen


def test_names_from_foreign_files_are_text(recorded):
    bad = "<img src=x onerror=alert(1)>\"'"

    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: poisoned(each) for name, each in value.items()}
        if isinstance(value, list):
            return [poisoned(each) for each in value]
        return bad if isinstance(value, str) else value

    documents = {
        memfit.RunReport: {**poisoned(recorded[0].raw), "schema": "memfit.run/1"},
        memfit.ExplainReport: {**poisoned(memfit.explain(recorded[1]).raw), "schema": "memfit.explain/1"},
    }
    documents[memfit.RunReport]["at_peak"]["by_category"] = {bad: 5}
    finding = {"rule": bad, "severity": bad, "file": bad, "message": f"`{bad}`", "labels": [], "help": bad}
    finding |= {"line": 1, "column": 1, "end_line": 1, "end_column": 1}
    documents[memfit.CheckReport] = {
        "schema": "memfit.check/1", "findings": [finding], "files": 1, "fixed": 0,
        "problems": [{"file": bad, "message": bad, "fatal": True}],
    }  # fmt: skip
    for kind, document in documents.items():
        report = dataclasses.replace(kind.from_json(json.dumps(document)), text=bad)
        page = Page(report._repr_html_())
        assert "img" not in page.seen
        assert bad in page.text
