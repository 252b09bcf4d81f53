"""The tables of docs/remedies/ are what runs give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from runs import GIB, ROOT, invoke
from tiers import exhaustive

PAGES = ROOT / "docs" / "remedies"
SCRIPT = ROOT / "examples" / "remedies" / "train.py"
AS_IT_IS = re.compile(r"^\| as it is: .* \| ([\d.]+) GiB \| ([\d.]+) GiB \| \d+ ms \|$", re.M)


def test_the_first_row_of_each_table_is_that_of_the_unchanged_script() -> None:
    found = {
        path.name: AS_IT_IS.findall(text)
        for path in PAGES.glob("*.md")
        if "<!-- table -->" in (text := path.read_text())
    }
    assert len(found) >= 5
    answer = invoke(
        [
            *("run", "--gpu", "rtx-3090", "--steps", "0", "--no-prove", "--format", "json"),
            *("--", sys.executable, str(SCRIPT)),
        ],
        cwd=ROOT,
    )
    peak = answer.report["peak"]
    row = tuple(f"{peak[name] / GIB:.2f}" for name in ("allocated", "device_upper"))
    assert found == {name: [row] for name in found}


@exhaustive
@pytest.mark.parametrize(
    "page", sorted(path.stem for path in PAGES.glob("*.md") if "<!-- table" in path.read_text())
)
def test_every_row_is_what_its_run_gives(page: str) -> None:
    command = [sys.executable, str(Path(ROOT, "scripts/tables/remedies.py")), "--check", page]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
