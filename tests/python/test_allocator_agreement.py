"""PyTorch's books and the device's agree, for every setting of its allocators."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runs import ROOT, invoke


def test_random_programs_of_every_setting(tmp_path: Path) -> None:
    script, said = ROOT / "scripts" / "replay" / "agreement.py", tmp_path / "answer.json"
    command = [sys.executable, str(script), "--programs", "2", "--steps", "120", "--answer", str(said)]
    options = ["--gpu", "t4:2", "--memory", "640MiB", "--steps", "0", "--no-prove", "--format", "json"]
    answer = invoke(["run", *options, "--", *command])
    assert said.is_file(), answer.stdout[-2000:] + answer.stderr[-2000:]
    outcomes = json.loads(said.read_text())
    assert {setting: each for setting, each in outcomes.items() if "failed" in each} == {}
    ran = [each for each in outcomes.values() if "programs" in each]
    assert len(ran) >= 12, "older releases lack some settings"
    assert sum(each["checks"] for each in ran) > 20 * len(ran)
    assert sum(each["out_of_memory"] for each in ran) > 0, "the cards were full at times"
