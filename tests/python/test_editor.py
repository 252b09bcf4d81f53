"""The language server after a run: bytes of the run at the lines that have not changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from runs import invoke, memfit

SCRIPT = """\
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def record(script: Path, *options: str) -> Path:
    """Run a script and return its recording."""
    recording = script.with_suffix(".memfit")
    command = ["run", "--gpu", "t4", *options, "-o", str(recording), "--", sys.executable, str(script)]
    done = invoke(command, cwd=script.parent)
    assert done.status == 0, done.stderr
    return recording


def hints(script: Path, recording: Path) -> dict[int, str]:
    """Return the server's inlay hints by line, from 1."""
    uri = script.as_uri()
    options = {"recording": str(recording)}
    document = {"uri": uri, "languageId": "python", "version": 1, "text": script.read_text()}
    everything = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"capabilities": {}, "initializationOptions": options}},
        {"method": "initialized", "params": {}},
        {"method": "textDocument/didOpen", "params": {"textDocument": document}},
        {
            "id": 2,
            "method": "textDocument/inlayHint",
            "params": {"textDocument": {"uri": uri}, "range": everything},
        },
        {"id": 3, "method": "shutdown"},
        {"method": "exit"},
    ]
    texts = (json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages)
    sent = b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(text), text) for text in texts)
    done = subprocess.run([memfit(), "server"], input=sent, capture_output=True, timeout=60, check=True)
    for part in done.stdout.split(b"Content-Length: ")[1:]:
        answer = json.loads(part.partition(b"\r\n\r\n")[2])
        if answer.get("id") == 2:
            return {hint["position"]["line"] + 1: hint["label"] for hint in answer["result"]}
    raise AssertionError(done.stdout)


def test_the_lines_of_a_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    recording = record(script)
    shown = hints(script, recording)
    # The layer has 4 MiB and 4 KiB of parameters, and twice as much optimizer state.
    assert shown[3] == "4.0 MiB parameters"
    assert shown[7] == "8.0 MiB optimizer"
    script.write_text("# one line more\n" + SCRIPT.replace("optimizer.step()", "optimizer.step()  # changed"))
    assert set(hints(script, recording)) == {line + 1 for line in shown} - {8}


def test_a_script_written_after_the_run_began_may_not_be_what_ran(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    later = time.time() + 3600
    os.utime(script, (later, later))
    assert hints(script, record(script)) == {}


def test_a_confidential_recording_knows_no_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert hints(script, record(script, "--confidential")) == {}
