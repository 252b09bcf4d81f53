"""`@pytest.mark.memfit(...)`: the tests that people write with it, carried out by pytest as they would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest
import torch


@pytest.fixture
def card():
    # Fixtures belong to the test, so they have the card as well.
    return torch.device("cuda") if torch.cuda.is_available() else pytest.fail("no card in the fixture")


@pytest.mark.parametrize("mebibytes", [64, 512])
@pytest.mark.memfit(gpu="t4", max_allocated="128 MiB")
def test_limit(card, mebibytes):
    torch.empty(mebibytes << 20, dtype=torch.uint8, device=card)


@pytest.mark.memfit("t4", memory="2 GiB", max_device="2 GiB")
def test_too_large(card):
    torch.empty(4 << 30, dtype=torch.uint8, device=card)


@pytest.mark.memfit(gpu="t4", memory="2 GiB")
class TestOfAClass:
    def test_wrong(self, card):
        torch.empty(1 << 20, dtype=torch.uint8, device=card)
        assert torch.cuda.get_device_name() == "a card of another name"

    def test_oom_is_expected(self, card):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(4 << 30, dtype=torch.uint8, device=card)


@pytest.mark.skip(reason="not today")
@pytest.mark.memfit(gpu="t4")
def test_skipped():
    raise AssertionError


def test_unmarked():
    assert not torch.cuda.is_available() and "MEMFIT_RUN_DIR" not in os.environ
"""


def carried_out(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # An addopts that the inner pytest would trip over, were it to take it.
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --junitxml=out.xml\n")
    plugin = [] if installed() else ["-p", "memfit.pytest_plugin"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *plugin, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "memfit.pytest_plugin" for point in entry_points(group="pytest11"))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marked")
    (folder / "test_marked.py").write_text(TESTS)
    return carried_out(folder), folder


@pytest.mark.parametrize(
    ("test", "status"),
    [
        ("test_limit[64]", "PASSED"),
        ("test_limit[512]", "FAILED"),
        ("test_too_large", "FAILED"),
        ("TestOfAClass::test_wrong", "FAILED"),
        ("TestOfAClass::test_oom_is_expected", "PASSED"),
        ("test_skipped", "SKIPPED"),
        ("test_unmarked", "PASSED"),
    ],
)
def test_a_marked_test_ends_as_its_card_says(outcome, test, status):
    done, _ = outcome
    assert re.search(rf"::{re.escape(test)} {status}", done.stdout), done.stdout + done.stderr


def test_a_failure_says_how_much_and_what_fills_it(outcome):
    done, folder = outcome
    assert "peak of allocated: 512 MiB, 384 MiB above 128 MiB" in done.stdout
    assert re.search(r"out of memory on .*T4 \(2\.00 GiB\): 4\.00 GiB were requested", done.stdout)
    assert "a card of another name" in done.stdout
    assert "3 failed, 3 passed, 1 skipped" in done.stdout
    # Reports contain each peak.
    assert 'name="memfit.peak.allocated" value="67108864"' in (folder / "out.xml").read_text()


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('gpu="t4", max_devise="1 GiB"', "not 'max_devise'"),
        ('gpu="t4", max_device="plenty"', "max_device"),
        ('"t4", "1 GiB"', "not '1 GiB'"),
    ],
)
def test_a_mark_that_cannot_be_understood_is_told_before_anything_runs(tmp_path, mark, said):
    (tmp_path / "test_mark.py").write_text(f"import pytest\n@pytest.mark.memfit({mark})\ndef test(): ...\n")
    done = carried_out(tmp_path)
    assert done.returncode == 4
    assert said in done.stderr


def test_a_card_that_is_not_known_fails_the_test_with_its_reason(tmp_path):
    (tmp_path / "test_card.py").write_text(
        "import pytest\n@pytest.mark.memfit(gpu='gtx-9')\ndef test(): ...\n"
    )
    done = carried_out(tmp_path)
    assert done.returncode == 1
    assert "gtx-9" in done.stdout
    assert "memfit gpus" in done.stdout


REPORTED = """
import pytest
import torch


@pytest.mark.memfit(gpu="t4")
@pytest.mark.parametrize("mebibytes", [64, 128])
def test_marked(mebibytes):
    with open("ran", "a") as file:
        file.write("x")
    torch.zeros(mebibytes, 1024, 1024, dtype=torch.uint8, device="cuda")


@pytest.mark.memfit(gpu="t4")
def test_alone():
    torch.zeros(32, 1024, 1024, dtype=torch.uint8, device="cuda")


def test_by_name(memfit_report):
    report = memfit_report("test_marked[128]")
    assert report["schema"] == "memfit.run/1"
    assert report["peak"]["allocated"] == 128 << 20
    report["peak"].clear()
    assert memfit_report("test_marked[128]")["peak"]["allocated"] == 128 << 20


def test_by_function(memfit_report):
    assert memfit_report(test_alone)["peak"]["allocated"] == 32 << 20


def test_of_none(memfit_report):
    memfit_report("test_by_name")


@pytest.mark.memfit(gpu="t4")
def test_of_itself(memfit_report): ...
"""


def test_another_test_gets_the_report_of_a_marked_one(tmp_path):
    (tmp_path / "test_reported.py").write_text(REPORTED)
    # The marked tests are not selected, except that one of them ran before.
    done = carried_out(tmp_path, "-k", "128 or by_name or of_none or by_function or itself")
    assert "test_by_name PASSED" in done.stdout, done.stdout
    assert "test_by_function PASSED" in done.stdout
    assert "test_of_none FAILED" in done.stdout
    assert "`test_reported.py::test_by_name` is not a collected test with the mark memfit" in done.stdout
    assert "memfit_report belongs in another test" in done.stdout
    assert (tmp_path / "ran").read_text() == "x", "a marked test ran twice"


def test_a_marked_test_that_ran_for_its_report_does_not_run_again(tmp_path):
    marked, others = REPORTED.split("@pytest.mark.memfit", 1)
    by_name = others[others.index("def test_by_name") : others.index("def test_by_function")]
    (tmp_path / "test_reported.py").write_text(f"{marked}{by_name}@pytest.mark.memfit{others}")
    done = carried_out(tmp_path, "-k", "128 or by_name")
    assert done.stdout.count(" PASSED") == 2, done.stdout
    assert (tmp_path / "ran").read_text() == "x", "a marked test ran twice"


def test_a_marked_test_that_was_not_collected_runs_for_its_report(tmp_path):
    (tmp_path / "test_reported.py").write_text(REPORTED)
    done = carried_out(tmp_path, "test_reported.py::test_by_function")
    assert "1 passed" in done.stdout, done.stdout
