"""`memfit ci`: growth is found with its line, against baselines and against a commit, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract import check_document
from runs import MIB, memfit

TRAIN = """
import torch
from torch import nn

from pack.model import forward

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    forward(model, torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
"""
MODEL = """
import torch


def forward(model, batch):
    return model(batch)
"""
# The same, below a comment, with a cache of 300 MiB that lives on.
GROWN = """
# A comment that moves every line.
import torch

CACHE = []


def forward(model, batch):
    if not CACHE:
        CACHE.append(torch.zeros(300, 1024, 256, device="cuda"))
    return model(batch)
"""
GROWN_LINE = 10


def git(folder: Path, *arguments: str) -> str:
    person = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *person, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def project(folder: Path, settings: str) -> Path:
    """A repository with one commit."""
    (folder / "src/pack").mkdir(parents=True)
    (folder / "src/pack/model.py").write_text(MODEL)
    (folder / "train.py").write_text(TRAIN)
    (folder / "pyproject.toml").write_text(settings)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def ci(
    folder: Path, *arguments: str, status: int = 0, path: str = "src", form: str = "json"
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [memfit(), "ci", "--quiet", "--format", form, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    document = json.loads(done.stdout)
    assert document["schema"] == "memfit.ci/1"
    check_document(document)
    return {row["script"]: row for row in document["rows"]}


def settings(*scripts: str, more: str = "") -> str:
    return f"[tool.memfit.ci]\ngpus = ['t4']\nscripts = {json.dumps(scripts)}\n{more}"


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a committed baseline."""
    folder = project(tmp_path_factory.mktemp("accepted"), settings(f"{sys.executable} train.py"))
    document = json.loads(ci(folder, "--accept").stdout)
    assert document["accepted"] == [".memfit/baselines/train.t4.toml"]
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "two")
    return folder


@pytest.fixture
def grown(accepted: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "grown"
    shutil.copytree(accepted, folder)
    (folder / "src/pack/model.py").write_text(GROWN)
    return folder


def test_an_unchanged_project_is_the_same(accepted: Path) -> None:
    row = rows(ci(accepted))["train"]
    assert (row["verdict"], row["growth"], row["lines"], row["notes"]) == ("same", 0, [], [])
    assert git(accepted, "status", "--porcelain") == ""


def holds_growth(row: dict[str, Any]) -> None:
    assert row["verdict"] == "grew"
    # The allocator takes such a block as a whole segment.
    assert row["growth"] == 300 * MIB
    assert row["growth"] == row["head"]["peak"]["device"] - row["base"]["peak"]["device"]
    (line,) = row["lines"]
    assert (line["file"], line["line"], line["function"]) == ("src/pack/model.py", GROWN_LINE, "forward")
    assert (line["base"], line["head"], line["growth"]) == (0, 300 * MIB, 300 * MIB)
    assert line["text"] == 'CACHE.append(torch.zeros(300, 1024, 256, device="cuda"))'


def test_growth_is_named_with_its_line_against_the_baseline(grown: Path) -> None:
    holds_growth(rows(ci(grown, status=1))["train"])


def test_growth_is_named_with_its_line_against_a_commit(grown: Path) -> None:
    # A baseline that would say otherwise is not read.
    shutil.rmtree(grown / ".memfit")
    before = git(grown, "worktree", "list"), git(grown, "status", "--porcelain")
    document = json.loads((done := ci(grown, "--base", "HEAD", status=1)).stdout)
    holds_growth(rows(done)["train"])
    assert document["base"] == {"reference": "HEAD", "commit": git(grown, "rev-parse", "HEAD").strip()}
    assert (git(grown, "worktree", "list"), git(grown, "status", "--porcelain")) == before


def test_a_tree_is_not_compared_with_itself(grown: Path) -> None:
    # As an editable installation would have it.
    row = rows(ci(grown, "--base", "HEAD", status=2, path=str(grown / "src")))["train"]
    assert (row["verdict"], row["problem"]["kind"]) == ("failed", "foreign-source")
    assert str(grown / "src/pack/model.py") in row["problem"]["message"]


def test_new_failed_and_shrunk_scripts_have_their_verdicts(tmp_path: Path) -> None:
    python = sys.executable
    folder = project(tmp_path / "project", settings(f"{python} train.py"))
    (folder / "broken.py").write_text("raise KeyError('it')\n")
    (folder / "large.py").write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\nx = torch.zeros(20, 1 << 30, device='cuda')\n"
    )
    (folder / "pyproject.toml").write_text(
        settings(f"{python} broken.py", f"{python} large.py", more="max-growth = '1 MiB'\n")
    )
    baselines = folder / ".memfit/baselines"
    baselines.mkdir(parents=True)
    (baselines / "old.t4.toml").write_text("")
    done = ci(folder, "--base", "HEAD", status=2)
    found = rows(done)
    assert (found["broken"]["verdict"], found["large"]["verdict"]) == ("failed", "new")
    assert "KeyError" in found["broken"]["problem"]["message"]
    # Its peak is what it would take.
    head = found["large"]["head"]
    assert (head["fits"], head["peak"]["allocated"] >= 80 * 1024 * MIB) == (False, True)
    assert any("old.t4.toml" in note for note in json.loads(done.stdout)["notes"])


def test_the_largest_batch_that_fits_is_found(tmp_path: Path) -> None:
    """A sample takes 1 GiB: itself, and its product with the weight. A T4 has 14.6 GiB, of which CUDA takes
    less than a half.
    """
    folder = project(
        tmp_path / "project",
        "[tool.memfit.ci]\ngpus = ['t4']\n[[tool.memfit.ci.scripts]]\n"
        f"command = '{sys.executable} train.py --batch-size 8'\nlargest-batch = true\nsteps = 1\n",
    )
    (folder / "train.py").write_text(
        "import argparse, torch\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch-size', type=int)\n"
        "batch = parser.parse_args().batch_size\n"
        "weight = torch.nn.Parameter(torch.ones((), device='cuda'))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "samples = torch.zeros(batch, 128, 1 << 20, device='cuda')\n"
        "(samples * weight).sum().backward()\n"
        "optimizer.step()\n"
    )
    document = json.loads(ci(folder, "--accept").stdout)
    check_document(document)
    assert document["rows"][0]["head"]["largest_batch"] == 14
    assert "largest-batch = 14\n" in (folder / ".memfit/baselines/train.t4.toml").read_text()


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    folder = project(
        tmp_path / "project", settings(f"{sys.executable} wait.py") + "[tool.memfit]\nshow-output = true\n"
    )
    (folder / "wait.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    running = subprocess.Popen(
        [memfit(), "ci", "--base", "HEAD"],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    while "ready" not in (line := running.stderr.readline()):
        assert line, "it ended by itself"
    assert len(git(folder, "worktree", "list").splitlines()) == 2
    running.send_signal(signal.SIGINT)
    rest = running.stderr.read()
    assert running.wait() == 2, rest
    assert "interrupted" in rest
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert not [left for left in temporary.iterdir() if left.name.startswith("memfit-base-")]
