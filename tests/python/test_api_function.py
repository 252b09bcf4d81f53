"""`memfit.fits`: a function on a virtual GPU; `memfit.record`: a block on a real one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import memfit
import pytest
from memfit._api import function
from support import on_device

#: A script whose function is found by its name, and that must not be run again as a script. The guide's test
#: calls such a function on a virtual GPU.
SCRIPT = """
import pathlib
import sys
from memfit._api import function

SIZES = [3]
pathlib.Path("imports").open("a").write(__name__ + "\\n")

def train(width, *, rate):
    pathlib.Path("called").write_text(f"{width} {rate} {SIZES} {sys.argv[1:]}")

if __name__ == "__main__":
    pathlib.Path("call.pickle").write_bytes(function._payload(train, (SIZES.pop(),), {"rate": 0.1}, 1))
"""


def test_a_scripts_function_is_called_without_the_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "train.py", "--flag"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, str(function.RUNNER), str(tmp_path / "call.pickle")], check=True)
    # The script was imported again: its list has its first value.
    assert (tmp_path / "called").read_text() == "3 0.1 [3] ['--flag']"
    assert (tmp_path / "imports").read_text() == "__main__\n__mp_main__\n"


def test_a_function_under_the_guard_is_refused_with_the_reason(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("def train", "if __name__ == '__main__':\n  def train"))
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    command = [sys.executable, str(function.RUNNER), str(tmp_path / "call.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must be defined outside of `if __name__ == '__main__':`" in done.stderr


def test_a_closure_is_called_as_often_as_asked(tmp_path):
    written = tmp_path / "calls"

    def call(text: str, *, end: str) -> None:
        with written.open("a") as file:
            file.write(text + end)

    (tmp_path / "call.pickle").write_bytes(function._payload(call, ("a",), {"end": "b"}, 3))
    subprocess.run([sys.executable, str(function.RUNNER), str(tmp_path / "call.pickle")], check=True)
    assert written.read_text() == "ababab"
    with pytest.raises(ValueError, match="at least 1"):
        memfit.fits(call, gpu="t4", calls=0)


def test_without_cloudpickle_a_closure_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        memfit.MemfitError, match=r"`.*<lambda>` cannot be found .* -m pip install cloudpickle"
    ):
        memfit.fits(lambda: None, gpu="t4")
    # A function of a module needs it not: it goes by its name.
    given = pickle.loads(function._payload(test_arguments_that_cannot_be_pickled_are_named, (1,), {}, 2))
    assert pickle.loads(given["call"]) == (test_arguments_that_cannot_be_pickled_are_named, (1,), {})
    assert given["calls"] == 2


def test_arguments_that_cannot_be_pickled_are_named():
    with pytest.raises(memfit.MemfitError, match="cannot be pickled"):
        memfit.fits(print, ((each for each in ()),), gpu="t4")


def test_a_call_within_the_imported_script_is_refused(monkeypatch):
    monkeypatch.setenv(function.IMPORTING, "1")
    with pytest.raises(memfit.MemfitError, match="__main__"):
        memfit.fits(print, gpu="t4")


def test_recording_needs_a_device(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with (
        pytest.raises(memfit.MemfitError, match=r"no CUDA device here.*memfit\.run"),
        memfit.record(tmp_path / "run.memfit"),
    ):
        pass


RECORDS = """
    import memfit

    def enabled():
        return torch._C._cuda_isHistoryEnabled()

    def block(path, mebibytes):
        with memfit.record(path):
            assert enabled()
            kept = torch.empty(mebibytes << 20, dtype=torch.uint8, device=device)
            del kept

    block("first.memfit", 64)
    off_again = not enabled()
    message = ""
    try:
        with memfit.record("oom.memfit") as recording:
            held = [torch.empty(3 << 30, dtype=torch.uint8, device=device) for _ in range(9)]
    except torch.OutOfMemoryError as error:
        message = str(error)
        del error

    # As without a run, whose own history would give way.
    del os.environ["MEMFIT_RUN_DIR"]
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1000)
    before = torch.empty(7 << 20, dtype=torch.uint8, device=device)
    block("within.pickle", 32)
    still_on = enabled()
    torch.cuda.memory._record_memory_history(enabled=None)
    failed = ""
    try:
        with memfit.record("nowhere/run.memfit"):
            pass
    except memfit.MemfitError as error:
        failed = str(error)
    answer(off_again=off_again, message=message, still_on=still_on, failed=failed)
"""


def test_a_block_is_recorded_and_an_older_history_stays_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = on_device(RECORDS, tmp_path, gpu="t4").said
    assert said["off_again"]
    assert said["still_on"]
    assert "out of memory" in said["message"]
    assert "does not exist" in said["failed"]

    first = memfit.explain("first.memfit")
    assert (first.cause, first.peak.allocated) == ("none", 64 << 20)
    oom = memfit.explain("oom.memfit")
    assert oom.peak.requested == 3 << 30
    # What was alive when the error left the block is part of the recording.
    assert oom.peak.allocated == 4 * (3 << 30)
    assert oom.timeline["failures"]
    lines = [line for fact in oom.evidence for line in fact.stack]
    assert any(line.file.endswith("script.py") for line in lines)

    snapshot = pickle.loads(Path("within.pickle").read_bytes())
    allocated = [event["size"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
    # The block of before belongs to the older history alone.
    assert allocated == [32 << 20]
