"""Errors that end a script but are not raised out of it: caught and shown, or of a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import on_device, through_memfit

LOGGED = """
    import traceback
    model = torch.nn.Linear(8, 8, device=device)
    try:
        open("/nowhere/annotations.json")
    except OSError:
        traceback.print_exc()
"""
IN_A_PROCESS = """
    import multiprocessing
    def train():
        open("/nowhere/annotations.json")
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
"""
BY_A_FRAMEWORK = """
    import sys, traceback
    try:
        try:
            open("/nowhere/annotations.json")
        except OSError as error:
            raise RuntimeError("Error while making the data") from error
    except RuntimeError:
        traceback.print_exc()
        sys.exit("\\nSet the environment variable FULL_ERROR=1 for all of it.")
"""
MISSING = "No such file or directory: '/nowhere/annotations.json'"


@pytest.mark.parametrize(
    ("code", "said", "status", "verdict"),
    [
        # It may have handled the error, and done on the GPU what it should.
        (LOGGED, MISSING, 0, "unknown"),
        (IN_A_PROCESS, MISSING, 0, "error"),
        (BY_A_FRAMEWORK, "RuntimeError: Error while making the data", 1, "error"),
    ],
    ids=["logged", "in a process", "by a framework"],
)
def test_an_error_that_a_script_shows_is_the_reason(
    code: str, said: str, status: int, verdict: str, tmp_path: Path
) -> None:
    answer = on_device(code, tmp_path)
    report = answer.report
    assert report["verdict"] == verdict, answer.output
    assert report["problem"]["kind"] == "exception"
    assert said in report["problem"]["message"]
    assert ("ended with status 0" in report["problem"]["message"]) == (status == 0)


def test_an_error_that_a_script_shows_before_it_trains_is_none(tmp_path: Path) -> None:
    trains = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(4, 8, device=device)).sum().backward()
    optimizer.step()
    """
    answer = on_device(LOGGED + trains, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output


USAGE = """
import argparse
argparse.ArgumentParser().parse_args()
"""


def test_a_rank_that_refuses_its_arguments_is_reported_with_its_last_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(USAGE, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", str(script), "--bf16"]
    problem = through_memfit("rtx-4090", launch, {})[2]["problem"]
    assert problem["kind"] == "exit", problem
    assert problem["message"].endswith("train.py: error: unrecognized arguments: --bf16"), problem


@pytest.mark.parametrize(
    ("leaving", "verdict"),
    [
        ("exit()", "error"),
        ("sys.exit()", "error"),
        ("sys.exit(0)", "error"),
        ("pass", "fits"),
        ("model(torch.zeros(1, 8, device=device))", "fits"),
    ],
)
def test_a_script_that_leaves_while_it_handles_an_error_did_not_do_what_it_should(
    leaving: str, verdict: str, tmp_path: Path
) -> None:
    code = f"""
    import sys
    model = torch.nn.Linear(8, 8, device=device)
    try:
        open("/nowhere/weights.pth")
    except OSError as error:
        print("please look after the weights")
        {leaving}
    """
    answer = on_device(code, tmp_path)
    assert answer.report["verdict"] == verdict, answer.output
    if verdict == "error":
        assert "No such file or directory: '/nowhere/weights.pth'" in answer.report["problem"]["message"]


def test_a_script_that_has_trained_may_leave_while_it_handles_an_error(tmp_path: Path) -> None:
    code = """
    import sys
    model = torch.nn.Linear(8, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        model(torch.zeros(1, 8, device=device)).sum().backward()
        optimizer.step()
        raise StopIteration
    except StopIteration:
        sys.exit()
    """
    answer = on_device(code, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output


def test_the_line_is_told_that_a_signal_interrupted(tmp_path: Path) -> None:
    code = """
    import ctypes
    torch.zeros(8, device=device)
    def read():
        ctypes.string_at(0)
    read()
    """
    problem = on_device(code, tmp_path).report["problem"]
    assert problem["kind"] == "signal", problem
    assert "The script was killed by SIGSEGV. It was at" in problem["message"], problem
    assert problem["message"].endswith("in read."), problem
    assert "can crash on a virtual GPU and not on a real one" in problem["hint"], problem


def test_a_script_that_the_system_killed_is_pointed_at_the_hosts_memory(tmp_path: Path) -> None:
    code = """
    import os, signal
    torch.zeros(8, device=device)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    problem = on_device(code, tmp_path).report["problem"]
    assert problem["message"].startswith("The script was killed by SIGKILL."), problem
    assert "the memory of the host, not of the GPU" in problem["hint"], problem
