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
