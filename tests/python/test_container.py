"""The steps of the Containerfile are in order: each is looked at, and what it copies and names is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the rehearsal copies what git tracks")
def test_the_steps_can_be_carried_out():
    rehearsal = [sys.executable, str(ROOT / "scripts/container/rehearse.py"), "--dry-run"]
    done = subprocess.run(rehearsal, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every step of the Containerfile was carried out" in done.stdout


def test_images_are_for_the_machines_own_processor():
    for file in ("Containerfile", "packaging/Containerfile"):
        lines = (ROOT / file).read_text().splitlines()
        images = [line for line in lines if line.startswith("FROM ")]
        assert len(images) == 1, file
        assert "--platform" not in images[0], file
