"""Pages and modules that are written from the code are current; `make generated` writes them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from runs import ROOT

GENERATORS = ("api", "overhead", "results", "schemas")


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_files_are_current(name: str) -> None:
    if name == "overhead" and sys.version_info < (3, 11):
        pytest.skip("the script reads TOML with the standard library of 3.11")
    script = ROOT / "scripts" / "docs" / f"{name}.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_generator_is_known_here_and_to_make() -> None:
    folder = ROOT / "scripts" / "docs"
    checked = sorted(path.stem for path in folder.glob("*.py") if '"--check"' in path.read_text())
    (stated,) = (
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("GENERATORS")
    )
    assert checked == sorted(GENERATORS) == sorted(stated.split(":=")[1].split())
