"""Reports that cannot be written are errors, and files of a run are readable by their owner only."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
import zlib

import pytest
from runs import invoke, memfit

NO_ANSWER = 2

VERBS = {
    "gpus": ["gpus"],
    "gpus as JSON": ["gpus", "--format", "json"],
    "check": ["check", "{script}"],
    "check as SARIF": ["check", "{script}", "--format", "sarif"],
    "check as JSON": ["check", "{script}", "--format", "json"],
    "check for GitHub": ["check", "{script}", "--format", "github"],
    "rule": ["rule", "anomaly-mode-left-on"],
    "rules": ["rule"],
    "completions": ["completions", "bash"],
    "doctor": ["doctor"],
    "data": ["data", "--measure", "0s", "{folder}"],
    "run": ["run", "--gpu", "t4", "--", "{python}", "{script}"],
    "run as JSON": ["run", "--gpu", "t4", "--format", "json", "--", "{python}", "{script}"],
    "plan": ["plan", "--gpu", "t4", "--", "{python}", "{script}"],
    "explain": ["explain", "{recording}"],
    "replay": ["replay", "{recording}"],
    "convert": ["convert", "{recording}", "-", "--to", "csv"],
    "help": ["--help"],
    "version": ["--version"],
}


def png() -> bytes:
    """A grey picture of 8 by 8 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(9 * 8))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def things(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("things")
    script, recording = folder / "train.py", folder / "run.memfit"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8, device='cuda')\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.zeros(8, 8, device='cuda')).sum().backward(); optimizer.step()\n"
    )
    (folder / "one.png").write_bytes(png())
    done = invoke(["run", "--gpu", "t4", "-o", str(recording), "--", sys.executable, str(script)])
    assert done.status == 0, done.stderr
    return {
        "script": str(script),
        "folder": str(folder),
        "recording": str(recording),
        "python": sys.executable,
    }


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_reports_a_full_disk(name, things):
    arguments = [word.format(**things) for word in VERBS[name]]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [memfit(), *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    assert done.returncode == NO_ANSWER, done.stderr
    assert "No space left on device" in done.stderr


def test_a_closed_pipe_is_no_error():
    shell = f"{memfit()} gpus | head -1; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", shell], check=False, capture_output=True).returncode == 0


def test_the_run_directory_is_private(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, stat, torch\n"
        "torch.ones(8, device='cuda')\n"
        "folder = os.environ['MEMFIT_RUN_DIR']\n"
        "json.dump(stat.S_IMODE(os.stat(folder).st_mode), open('mode.json', 'w'))\n"
    )
    os.umask(0o022)
    answer = invoke(["run", "--gpu", "t4", "--", sys.executable, str(script)], cwd=tmp_path)
    assert answer.status == 0, answer.stderr
    assert json.loads((tmp_path / "mode.json").read_text()) == stat.S_IRWXU


def test_a_name_that_needs_torch_says_how_to_get_it(tmp_path):
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    code = "import memfit\ntry:\n    memfit.{}\nexcept ImportError as error:\n    print(error)"
    tree = {"PYTHONPATH": str(tmp_path)}
    for name in ("Step", "inference", "data.ImageLoader"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)],
            env={**os.environ, **tree},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "-m pip install torch" in done.stdout, done.stdout + done.stderr
        assert name.split(".")[-1] in done.stdout
