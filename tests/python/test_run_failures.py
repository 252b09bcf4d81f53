"""Everything that can go wrong with a run has its own answer and its own exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from runs import GIB, MIB, completed, invoke, memfit, run

BAD_NEWS, NO_ANSWER = 1, 2


def test_a_script_that_raises():
    answer = run("failing.py")
    assert answer.status == NO_ANSWER
    assert answer.report["verdict"] == "error"
    assert "ValueError: the labels of batch 1 are missing" in answer.stdout
    assert "this run is about to fail" in answer.stderr, "what the script said last is shown"


def test_a_script_that_exits_with_a_status():
    answer = run("failing.py --how status --status 7")
    assert answer.status == NO_ANSWER
    assert answer.report["verdict"] == "error"
    assert answer.report["script"]["exit_status"] == 7


def failing(folder, code, *options, command=(sys.executable,), gpu="rtx-4090"):
    path = folder / "train.py"
    path.write_text("import torch\n" + textwrap.dedent(code), encoding="utf-8")
    return invoke(
        ["run", "--gpu", gpu, "--memory", "2GiB", "--no-prove", *options, "--", *command, str(path)],
        cwd=folder,
        env={"NO_COLOR": "1", "COLUMNS": "500"},
    )


def test_a_failure_after_an_assumed_value_is_not_the_scripts_own(tmp_path):
    answer = failing(
        tmp_path,
        """
        rate = torch.rand(8, device="cuda").mul(3).sum()
        print(1 / int(rate.item() * 0))
        """,
    )
    assert answer.status == NO_ANSWER
    assert "by itself" not in answer.stdout
    said = " ".join(answer.stdout.split())
    assert (
        "memfit may have caused this failure. Before it: the script had read values that only a GPU can compute"
        in said
    )
    assert "train.py:4 in <module>: ZeroDivisionError" in said
    assert "compares, rounds or copies" not in said, "the same fact again"


def test_a_failure_before_anything_was_changed_is_the_scripts_own(tmp_path):
    answer = failing(tmp_path, "raise KeyError('image')", "--format", "json")
    assert answer.report["problem"]["kind"] == "exception"
    message = answer.report["problem"]["message"]
    assert re.fullmatch(r"The script itself failed at \S+:\d+ in <module>: KeyError: 'image'", message), (
        message
    )


def test_the_error_of_a_process_comes_before_its_launchers(tmp_path):
    (tmp_path / "child.py").write_text("import torch\nraise KeyError('image')\n")
    code = """
        import subprocess, sys
        subprocess.run([sys.executable, "child.py"], check=True)
    """
    report = failing(tmp_path, code, "--format", "json").report
    assert report["script"]["exception"]["type"] == "KeyError"
    assert "KeyError" in report["problem"]["message"]


def test_more_time_is_no_advice_where_a_process_had_failed(tmp_path):
    # A shell script goes on after a command that failed.
    (tmp_path / "first.py").write_text("raise KeyError('image')\n")
    shell = ("bash", "-c", f"{sys.executable} first.py; sleep 600")
    problem = failing(tmp_path, "", "--timeout", "8", "--format", "json", command=shell).report["problem"]
    assert "One of its processes had failed" in problem["message"]
    assert "KeyError: 'image'" in problem["message"]
    assert "--timeout" not in problem["hint"]


LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"


@pytest.mark.parametrize("launch", [(sys.executable,), (sys.executable, "-c", LAUNCHER)])
def test_the_line_is_told_at_which_time_was_up(launch, tmp_path):
    """Also behind a launcher, where a thread of the script's works, and where it has a handler of its own."""
    (tmp_path / "prepare.py").write_text(
        textwrap.dedent("""
        import faulthandler, sys, threading, time
        if len(sys.argv) > 1:
            faulthandler.enable()
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

        def tokenized(rows):
            return [str(row) for row in rows for _ in iter(int, 1)]

        tokenized(range(8))
        """)
    )
    command = (*launch, str(tmp_path / "prepare.py"))
    problem = failing(tmp_path, "", "--timeout", "6", "--format", "json", command=command).report["problem"]
    assert problem["kind"] == "timeout"
    assert re.search(r"It was at \S*prepare\.py:8 in \S*(tokenized|<listcomp>)\.$", problem["message"]), (
        problem
    )
    assert "--timeout" in problem["hint"]


def test_an_error_is_told_with_the_one_that_it_was_raised_from(tmp_path):
    code = """
        try:
            raise ValueError("compiled for another release")
        except ValueError as error:
            raise ImportError("Could not import 'Model'.") from error
    """
    problem = failing(tmp_path, code, "--format", "json").report["problem"]
    said = "Could not import 'Model'. (raised from ValueError: compiled for another release)"
    assert problem["message"].endswith(f" in <module>: ImportError: {said}"), problem


STEPS = """
    model = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
    for step in range(9):
        model(torch.zeros(8, 4096, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_peaks_of_whole_steps_are_told_though_the_script_fails(tmp_path):
    code = STEPS.format(optimizer="AdamW") + "        assert step < 1, 'enough'\n"
    answer = failing(tmp_path, code)
    assert answer.status == NO_ANSWER
    assert "AssertionError: enough" in answer.stdout
    assert "What filled the GPU in the 2 steps before that:" in answer.stdout
    assert re.search(r"optimizer +128 MiB", answer.stdout)


def test_a_first_step_alone_decides_where_what_it_made_would_fit_too(tmp_path):
    code = STEPS.format(optimizer="AdamW").replace("torch.zeros(8,", "torch.zeros({rows},")
    small = failing(tmp_path, code.format(rows=8), "--steps", "1", "--format", "json")
    assert (small.status, small.report["verdict"]) == (0, "fits")
    # Most of the card in the forward pass: the 192 MiB that the step leaves behind do not fit in addition.
    large = failing(tmp_path, code.format(rows=23_000), "--steps", "1", "--format", "json")
    assert (large.status, large.report["verdict"]) == (NO_ANSWER, "unknown"), large.report["peak"]
    assert large.report["problem"]["kind"] == "single-step"


def test_work_of_the_first_step_counts_with_the_state_that_came_after_it(tmp_path):
    code = """
        model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(100):
            optimizer.zero_grad()
            rows = 8 if step % 4 else 8_500
            loss = model(torch.zeros(rows, 4096, device="cuda")).square().sum()
            loss.backward()
            optimizer.step()
    """
    report = failing(tmp_path, code, "--format", "json").report
    # 512 MiB of state are not in the first step, which leaves less than that of the 2 GiB.
    assert (report["verdict"], report["problem"]["kind"]) == ("unknown", "early-step"), report["peak"]
    said = report["problem"]["message"]
    assert re.search(r"only step 1 did some of its work at \S*train\.py:\d+", said), said
    assert re.search(r"51\d MiB of optimizer state", said), said


def test_the_report_names_the_interpreter(tmp_path):
    report = failing(tmp_path, "torch.ones(8, device='cuda')", "--format", "json").report
    assert report["script"]["interpreter"] == sys.executable


def test_the_path_gives_way_only_where_it_has_no_torch(tmp_path):
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    script = tmp_path / "train.py"
    script.write_text("import torch; torch.ones(8, device='cuda')")
    beside = Path(memfit()).with_name("python")
    env = {"PATH": f"{bare.parent}:/usr/bin:/bin", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    answer = invoke(["run", "--gpu", "t4", "--format", "json", "--", "python", str(script)], env=env)
    if beside.exists():
        assert answer.report["script"]["command"][0] == str(beside)
        assert any(str(bare) in note for note in answer.report["fidelity"]["notes"])
    else:
        # A stand-alone memfit has no interpreter next to it.
        assert answer.status == NO_ANSWER
        assert "PyTorch is not installed" in answer.stderr


def test_an_interpreter_that_leaves_the_probe_out():
    # It leaves at once: what PyTorch's own threads do at an orderly end is not asked here.
    code = "import os, torch; torch.ones(8, device='cuda'); os._exit(0)"
    answer = invoke(["run", "--gpu", "rtx-4090", "--format", "json", "--", sys.executable, "-I", "-c", code])
    assert answer.status == NO_ANSWER
    assert answer.report["problem"]["kind"] == "not-watched"
    assert "-I" in answer.report["problem"]["hint"]


def test_a_script_that_is_killed_by_a_signal():
    answer = run("failing.py --how signal")
    assert answer.status == NO_ANSWER
    assert answer.report["verdict"] == "error"
    assert (
        signal.Signals.SIGSEGV.name
        in json.dumps(answer.report["script"]) + answer.report["problem"]["message"]
    )


def test_a_script_that_never_reaches_a_step():
    answer = run("stalled.py", options="--timeout 15")
    assert answer.status == NO_ANSWER
    assert answer.report["verdict"] in ("unknown", "error")
    assert answer.report["steps"] == 0
    assert answer.report["problem"]["kind"] == "timeout"


def test_processes_that_a_script_starts_are_its_ranks_before_they_train(tmp_path):
    code = """
        def work(index, both):
            torch.cuda.set_device(index)
            torch.empty(64 << 20, device="cuda")
            for _ in torch.utils.data.DataLoader(range(2), num_workers=1):
                pass
            both.wait()

        if __name__ == "__main__":
            both = torch.multiprocessing.get_context("spawn").Barrier(2)
            torch.multiprocessing.spawn(work, (both,), nprocs=2)
    """
    answer = failing(tmp_path, code, "--format", "json", gpu="t4:2")
    assert [rank["card"] for rank in answer.report["ranks"]] == [0, 1]
    assert answer.peak["reserved"] == 256 * MIB


def test_an_error_that_the_script_catches_and_overcomes():
    answer = run("catch_oom.py", gpu="a100-80gb", memory=4 * GIB)
    assert (answer.status, answer.report["verdict"]) == (0, "fits")
    assert answer.report["oom"]["caught"] is True
    assert answer.report["steps"] == 3


def test_an_error_that_the_script_catches_and_gives_up_on():
    answer = run("catch_oom.py --give-up", gpu="a100-80gb", memory=4 * GIB)
    assert (answer.status, answer.report["verdict"]) == (BAD_NEWS, "oom")
    assert answer.report["oom"]["caught"] is True


def test_an_error_in_the_allocators_words_is_one_whatever_its_type(tmp_path):
    # Operations that are built for any release of PyTorch pass the allocator's error on as a plain
    # RuntimeError.
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torchvision.ops import roi_align\n"
        "features, boxes = torch.ones(1, 256, 8, 8, device='cuda'), torch.ones(100_000, 5, device='cuda')\n"
        "roi_align(features, boxes, 7)\n"
    )
    command = ["--", sys.executable, str(tmp_path / "train.py")]
    options = ["--gpu", "t4", "--memory", "2GiB", "--no-prove", "--format", "json"]
    answer = invoke(["run", *options, *command])
    assert (answer.status, answer.report["verdict"]) == (BAD_NEWS, "oom"), answer.stderr
    oom = answer.report["oom"]
    # As the allocator asks the device for it.
    assert 0 <= oom["requested"] - 100_000 * 256 * 7 * 7 * 4 < 2 * MIB
    assert oom["caught"] is False
    assert "Tried to allocate" in oom["message"]
    assert "train.py:4" in oom["stack"][0]


def test_pytorchs_own_words_are_kept():
    answer = run("catch_oom.py --give-up", gpu="a100-80gb", memory=4 * GIB)
    text = answer.stdout + answer.stderr
    assert "CUDA out of memory. Tried to allocate" in text
    assert "4.00 GiB" in text, "the capacity in the message is the one that was asked for"


def test_an_unknown_card():
    answer = invoke(["run", "--gpu", "rtx-4091", "--", sys.executable, "resnet.py"])
    assert answer.status == NO_ANSWER
    assert "rtx-4090" in answer.stderr.lower().replace(" ", "-")
    assert answer.stdout == ""


def test_a_script_that_is_not_there():
    answer = invoke(["run", "--gpu", "rtx-4090", "--", sys.executable, "no_such_script.py"])
    assert answer.status == NO_ANSWER
    assert "no_such_script.py" in answer.stderr


def test_a_command_that_is_not_there():
    answer = invoke(["run", "--gpu", "rtx-4090", "--", "no-such-command", "train.py"])
    assert answer.status == NO_ANSWER
    assert "no-such-command" in answer.stderr


def test_no_command_at_all():
    answer = invoke(["run", "--gpu", "rtx-4090"])
    assert answer.status == NO_ANSWER


def fake_torch(folder, version_py):
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from .version import __version__\n")
    if version_py:
        (package / "version.py").write_text(version_py)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def test_a_torch_for_the_cpu_only(tmp_path):
    env = fake_torch(tmp_path, "__version__ = '2.15.0+cpu'\ncuda = None\nhip = None\n")
    answer = invoke(["run", "--gpu", "rtx-4090", "--", sys.executable, "resnet.py"], env=env)
    assert answer.status == NO_ANSWER
    assert "cpu" in answer.stderr.lower()
    assert "install" in answer.stderr.lower(), "it says which package to install"


def test_an_interpreter_without_torch(tmp_path):
    # -S leaves the site's packages out, so the interpreter is a true one that has no torch.
    bare = tmp_path / "python-without-torch"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    answer = invoke(["run", "--gpu", "rtx-4090", "--", str(bare), "resnet.py"])
    assert answer.status == NO_ANSWER
    assert "torch" in answer.stderr


def test_json_stands_alone_on_stdout_and_goes_to_a_file_too(tmp_path):
    target = tmp_path / "report.json"
    answer = run("late_import.py", options=f"--json {target}")
    assert answer.report == json.loads(target.read_text())
    assert "step 0" not in answer.stdout


def test_the_text_begins_with_the_verdict():
    answer = invoke(
        ["run", "--gpu", "a100-80gb", "--", sys.executable, "late_import.py"], env={"NO_COLOR": "1"}
    )
    assert answer.status == 0
    first = next(line for line in answer.stdout.splitlines() if line.strip())
    assert "fits" in first.lower()
    assert "\x1b[" not in answer.stdout


def test_nothing_of_the_users_is_overwritten(tmp_path):
    checkpoint = tmp_path / "classifier.pt"
    checkpoint.write_bytes(b"the weights of last week")
    small = "--arch resnet18 --image-size 32 --batch-size 8 --epochs 1 --workers 0"
    small += " --train-images 16 --test-images 8"
    example = f"../examples/classifier/train.py {small} --checkpoint {checkpoint}"
    answer = run(example, options="--steps 0")
    assert answer.status == 0, answer.stderr
    assert checkpoint.read_bytes() == b"the weights of last week", "a dry run has no weights worth saving"


def test_the_scripts_own_output_is_kept_apart():
    assert "step 0" not in completed("late_import.py").stdout
    answer = run("late_import.py", options="--show-output")
    assert "step 0" in answer.stderr
