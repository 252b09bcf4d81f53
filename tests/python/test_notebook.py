"""The notebook extension, in IPython's own shell."""

from __future__ import annotations

import re
from pathlib import Path

import memfit
import pytest
from IPython.core.interactiveshell import InteractiveShell
from memfit._api import html
from memfit._notebook import held, magics, script
from memfit._notebook.cells import Cell, History, Source, asks_memfit, python
from support import on_device


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    yield shell
    InteractiveShell.clear_instance()


def cell(shell, text, *, identity=None):
    return shell.run_cell(text, store_history=True, cell_id=identity)


MODEL = """\
!echo from the shell
%time width = 512
import torch
def make(): \\
    return torch.nn.Linear(width, width)
"""
TRAIN = """\
%%memfit run --gpu {card} --into report
model = make().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.zeros(scale * 256, width, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_cell_runs_with_the_cells_before_it(shell, capsys):
    cell(shell, "card = 't4'\nscale = 1")
    cell(shell, "%load_ext memfit")
    cell(shell, MODEL)
    cell(shell, "width = 0\nraise ValueError")
    cell(shell, "%%writefile notes.txt\nwidth = 1")
    assert cell(shell, "import asyncio\nawait asyncio.sleep(0)\nscale = 2").success
    done = cell(shell, TRAIN)
    assert done.success, capsys.readouterr().out
    report = done.result
    assert report.verdict == "fits"
    assert report.at_peak.by_category["parameters"] == 4 * (512 * 512 + 512)
    assert report.at_peak.by_category["inputs"] == 4 * 512 * 512
    assert report.timeline["events"] > 10
    assert report.recording is None
    assert shell.user_ns["report"] is report
    assert shell.user_ns["_"] is report
    assert "left out, since a run has no notebook: !echo" in capsys.readouterr().out


def test_an_error_is_of_the_cells_own_line(shell, capsys):
    cell(shell, "%load_ext memfit")
    cell(shell, "def wrong(x):\n    return x / 0")
    cell(shell, "earlier = memfit_result = 1")
    done = cell(shell, "%%memfit run --gpu t4\n# a comment\n\n!ls \\\n  .\nwrong(1)")
    error = done.error_in_exec
    assert isinstance(error, memfit.ScriptError)
    trace = str(error)
    assert 'File "In[4]", line 6, in <module>\n    wrong(1)\n' in trace
    assert 'File "In[2]", line 2, in wrong\n    return x / 0\n' in trace
    assert "cells.py" not in trace
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_wrong_usage_is_one_line(shell, capsys):
    cell(shell, "%load_ext memfit")
    for text, said in [
        ("%memfit fly", "no verb 'fly'"),
        ("%%memfit run --gpu gtx-9 --alone\nx = 1", "no GPU named `gtx-9`"),
        ("%%memfit run --into 2x\nx = 1", "the name of a variable, not '2x'"),
        ("%%memfit run -- python x.py\nx = 1", "`%%memfit` runs the cell and takes no command"),
        ("%memfit run --gpu t4 --into", "`--into` needs a value"),
    ]:
        assert not cell(shell, text).success
        output = capsys.readouterr()
        assert said in output.out + output.err
        assert "Traceback" not in output.out + output.err
    assert cell(shell, "%memfit").success
    assert "%%memfit run|plan|cards" in capsys.readouterr().out


def test_a_check_names_the_cells(shell):
    cell(shell, "%load_ext memfit")
    cell(shell, "import torch\nfrom torch import nn")
    code = (
        "def train(model, loader, optimizer):\n    total = 0\n    for x, y in loader:\n"
        "        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())\n        loss.backward()\n"
        "        optimizer.step()\n        total += loss\n    return total\n"
    )
    cell(shell, code)
    done = cell(shell, "%memfit check")
    (finding,) = (each for each in done.result.findings if each.rule == "tensor-running-loss")
    assert (finding.file, finding.cell, finding.line) == ("notebook.ipynb", 3, 7)


def test_a_cell_that_ran_again_is_run_once_in_its_first_place():
    history = History()
    history.add(Cell(1, "a = 1", "first"))
    history.add(Cell(2, "b = a", "second"))
    history.add(Cell(3, "a = 2", "first"))
    history.add(Cell(4, "a = 1"))
    history.add(Cell(5, "# memfit: skip\ntrain()", "fifth"))
    assert [(each.number, each.text) for each in history.cells()] == [
        (3, "a = 2"),
        (2, "b = a"),
        (4, "a = 1"),
    ]
    assert [each.number for each in history.cells([2])] == [3, 4]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("%%bash\nls", None),
        ("%%memfit run\nx", None),
        ("   \n", None),
        ("%%time\nx = 1", "\nx = 1\n"),
        ("%%capture out --no-stderr\nx = 1", "\nx = 1\n"),
    ],
)
def test_a_cell_is_python_or_not_run(shell, text, code):
    source = python(Cell(1, text), shell.input_transformer_manager.transform_cell)
    if code is None:
        assert source is None
    else:
        assert source.code.strip() == code.strip()
        assert source.lines[source.code.splitlines().index("x = 1")] == 2


def test_a_cell_that_asks_memfit_is_not_run_within_a_run(shell):
    transform = shell.input_transformer_manager.transform_cell
    assert asks_memfit(python(Cell(1, "r = [memfit.run(c) for c in x]"), transform)) == "memfit.run"
    assert asks_memfit(python(Cell(1, "runner.run(memfit)"), transform)) is None


def test_a_run_that_ended_in_an_earlier_cell_is_no_answer(monkeypatch):
    class Fits:
        fits = True

    def ask(_verb, arguments, **_):
        Path(arguments[-1], "reached").write_text("3")

    monkeypatch.setattr(script, "ask", ask)
    monkeypatch.setattr(script, "_read", lambda *_: Fits())
    sources = [Source(number, "x = 1", [1], "x = 1") for number in (3, 7)]
    assert script.run_cells("run", sources[:1], [], False, {})[1] == []
    with pytest.raises(
        memfit.CommandError, match=r"all steps ran in In\[3\], before In\[7\] began"
    ) as raised:
        script.run_cells("run", sources, [], False, {})
    assert "--skip 3" in raised.value.hint


def test_in_a_notebook_progress_is_one_line_that_goes(shell, capsys):
    cell(shell, "%load_ext memfit")
    shell.kernel = object()
    extension = getattr(shell, magics.ATTRIBUTE)
    tell = extension._progress()
    tell("starting, 0 s\n")
    tell("torch, 4 s\n")
    extension._clear(False)
    extension._clear(False)
    blank = " " * 80
    assert capsys.readouterr().out == f"\r{'starting, 0 s':<80}\r{'torch, 4 s':<80}\r{blank}\r"


def test_loading_twice_registers_once_and_unloading_takes_all_away(shell):
    magics.load(shell)
    magics.load(shell)
    hooks = shell.events.callbacks["post_run_cell"]
    assert len([hook for hook in hooks if "Extension.after" in repr(hook)]) == 1
    magics.unload(shell)
    assert not [hook for hook in hooks if "Extension.after" in repr(hook)]
    assert "memfit" not in shell.magics_manager.magics["cell"]


OOM = """
    from IPython.core.interactiveshell import InteractiveShell
    import contextlib, io, memfit

    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False

    def cell(text):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            shell.run_cell(text, store_history=True)
        return out.getvalue()

    cell("%load_ext memfit")
    cell("import torch, memfit\\nkept = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')")
    cell("torch.empty(512 << 20, dtype=torch.uint8, device='cuda')")
    cell("def work():\\n    mine, ours = torch.empty(2 << 30, dtype=torch.uint8, device='cuda'), kept\\n"
         "    return torch.empty(1 << 40, dtype=torch.uint8, device='cuda')")
    told = cell("work()")
    freed = cell("print(memfit.release())")
    quiet = cell("torch.empty(1 << 40, dtype=torch.uint8, device='cuda')")
    other = cell("1 / 0")
    answer(told=told, freed=freed, quiet=quiet, other=other)
"""


def test_after_out_of_memory_the_bytes_to_release_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    said = on_device(OOM, tmp_path, gpu="t4").said
    # 2 GiB of the function's variable and 512 MiB of an output; `kept` is the notebook's own.
    assert "hold at least 2.50 GiB of GPU memory; `memfit.release()` frees it" in said["told"]
    assert int(said["freed"]) == (2 << 30) + (512 << 20)
    assert "memfit:" not in said["quiet"] + said["other"]
    assert "OutOfMemoryError" in said["quiet"]


def test_errors_of_memory_are_told_apart():
    assert held.is_out_of_memory(type("OutOfMemoryError", (RuntimeError,), {})())
    assert held.is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate"))
    assert not held.is_out_of_memory(MemoryError())


def test_categories_have_the_colours_of_the_viewer() -> None:
    style = Path(__file__).parents[2] / "crates/memfit-view/assets/style.css"
    light, dark, *_ = re.findall(r"^ *(--parameters: .*)$", style.read_text(), re.M)
    for here, viewer in ((html.LIGHT, light), (html.DARK, dark)):
        own = dict(re.findall(r"--([a-z]+):(#\w+)", here))
        theirs = dict(re.findall(r"--([a-z]+): (#\w+)", viewer))
        # A notebook's page has another background, on which the viewer's fragmentation cannot be seen.
        del theirs["fragmentation"]
        assert len(theirs) == 10
        assert {name: own[name] for name in theirs} == theirs


def test_cells_to_skip_are_numbers_and_ranges():
    assert magics._numbers("3, 5-7") == [3, 5, 6, 7]
    for wrong in ("In[3]", "three", "3-", "-3", "3-x"):
        with pytest.raises(Exception, match=f"not '{re.escape(wrong)}'"):
            magics._numbers(wrong)


def test_explain_above_a_cell_names_the_line_magic(shell):
    cell(shell, "%load_ext memfit")
    with pytest.raises(Exception, match="takes no cell"):
        getattr(shell, magics.ATTRIBUTE).magic("explain run.memfit", "x = 1")
