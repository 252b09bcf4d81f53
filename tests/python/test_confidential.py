"""Confidential reports: no secrets of the command line ever, and no names on request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from runs import invoke, memfit

SCRIPT = """
import torch

class SecretNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hush = torch.nn.Linear(256, 256)

    def forward(self, x):
        return self.hush(x)

model = SecretNet().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
TOKEN = "correct-horse-battery"


def run(folder: Path, *options: str) -> tuple[str, bytes]:
    """The JSON and the recording of a run."""
    (folder / "private.py").write_text(SCRIPT)
    recording = folder / "run.memfit"
    arguments = ["run", "--gpu", "t4", "--format", "json", *options, "-o", str(recording)]
    done = invoke(
        [*arguments, "--", sys.executable, str(folder / "private.py"), "--token", TOKEN], cwd=folder
    )
    assert done.status == 0, done.stderr
    shown = folder / "shown.csv"
    subprocess.run([memfit(), "convert", "--force", recording, shown], check=True, capture_output=True)
    return done.stdout, recording.read_bytes() + shown.read_bytes()


def test_secrets_of_the_command_line_are_in_nothing_that_is_shared(tmp_path: Path) -> None:
    report, recording = run(tmp_path)
    assert json.loads(report)["script"]["command"][-2:] == ["--token", "<hidden>"]
    assert TOKEN not in report
    assert TOKEN.encode() not in recording
    assert b"hush" in recording


def test_confidential_answers_contain_no_names(tmp_path: Path) -> None:
    open_report, _ = run(tmp_path)
    report, recording = run(tmp_path, "--confidential")
    for word in (TOKEN, "hush", "SecretNet", "private.py", str(tmp_path), sys.executable):
        assert word not in report, word
        assert word.encode() not in recording, word
    document, expected = json.loads(report), json.loads(open_report)
    for key in ("schema", "verdict", "peak", "device"):
        assert document[key] == expected[key]
    assert document["at_peak"]["by_category"] == expected["at_peak"]["by_category"]
