"""`memfit data --loader`: a script's own `DataLoader`, compared with the speed of the GPU that it feeds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from contract import check_document
from runs import invoke

SCRIPT = """
import argparse, time
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--item-ms", type=float, default=0.0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--card", action="store_true")
parser.add_argument("--fails-in-workers", action="store_true")
args = parser.parse_args()

class Items(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if args.fails_in_workers and torch.utils.data.get_worker_info() is not None:
            raise OSError("the archive is open elsewhere")
        # As from a disk that lets it wait: what else this machine does cannot change that.
        time.sleep(args.item_ms / 1000)
        item = torch.zeros(3, 32, 32)
        return (item.cuda() if args.card else item), index % 10

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# An evaluation comes first: it is not what feeds the training.
with torch.no_grad():
    for images, labels in DataLoader(Items(), batch_size=32):
        model(images.cuda())
loader = DataLoader(Items(), batch_size=8, num_workers=args.workers, shuffle=True)
for epoch in range(100):
    for number, (images, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        (loss / args.accumulate).backward()
        if (number + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def measured(folder: Path, *arguments: str, status: int) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    words = ["data", "--gpu", "t4", "--measure", "1s", "--format", "json"]
    done = invoke([*words, "--loader", sys.executable, str(script), *arguments], cwd=folder)
    assert done.status == status, done.stderr + done.stdout
    report = done.report
    check_document(report)
    return report


def test_a_slow_loader_is_measured_and_better_settings_proposed(tmp_path: Path) -> None:
    report = measured(tmp_path, "--item-ms", "20", status=1)
    # A step of this model takes far less than 8 items of 20 ms, whatever machine this is.
    assert report["verdict"] in ("waits", "keeps-up-as-proposed")
    assert report["dataset"] == {"class": "Items", "items": 64}
    assert report["batch"]["samples"] == 8
    assert report["batch"]["bytes"] == 8 * (3 * 32 * 32 * 4 + 8)
    assert report["sample"]["median_ms"] >= 20
    assert report["own"]["num_workers"] == 0
    assert report["own"]["card_waits"] > 0.5
    alone, *others = report["measured"]
    assert (alone["workers"], alone["memory"]) == (0, 0)
    assert alone["batch_ms"] >= 160
    assert others[0]["workers"] == 1
    assert all(trial["memory"] > 0 for trial in others)
    if len(others) > 1:
        # With one CPU, one worker is all that is tried.
        assert report["proposed"]["num_workers"] > 1
        assert report["proposed"]["persistent_workers"]
        assert report["proposed"]["shared_memory"] >= 2 * report["batch"]["bytes"]
    assert report["batches_per_step"] == 1


def test_batches_of_an_accumulated_step_are_counted(tmp_path: Path) -> None:
    report = measured(tmp_path, "--accumulate", "2", status=1)
    assert report["batches_per_step"] == 2
    assert report["measured"][0]["batches"] > 1


def test_batches_on_the_card_have_no_workers(tmp_path: Path) -> None:
    report = measured(tmp_path, "--card", status=1)
    assert report["batch"]["on_card"]
    assert (report["proposed"]["num_workers"], report["proposed"]["pin_memory"]) == (0, False)


def test_workers_that_fail_are_told_and_not_proposed(tmp_path: Path) -> None:
    report = measured(tmp_path, "--item-ms", "4", "--fails-in-workers", status=1)
    failed = [trial for trial in report["measured"] if trial["workers"] > 0]
    assert all("the archive is open elsewhere" in trial["error"] for trial in failed)
    assert report["proposed"]["num_workers"] == 0
    assert any("the archive is open elsewhere" in line for line in report["advice"])


def test_a_script_without_a_loader_has_no_answer(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(9):\n    model(torch.zeros(2, 4).cuda()).sum().backward()\n    optimizer.step()\n"
    )
    done = invoke(["data", "--gpu", "t4", "--loader", sys.executable, str(script)], cwd=tmp_path)
    assert done.status == 2
    assert "never iterated over a `torch.utils.data.DataLoader`" in done.stdout


def test_the_text_names_the_settings(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ["data", "--gpu", "t4", "--measure", "1s", "--loader", str(script), "--item-ms", "4"]
    # A script alone is run by the environment's interpreter.
    here = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = invoke(words, cwd=tmp_path, env=here)
    assert "would wait for data" in done.stdout
    assert "DataLoader(…, num_workers=" in done.stdout
    assert "GPU waits" in done.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_says_when_the_card_would_wait(tmp_path: Path, workers: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def notes(item_ms: int, steps: int) -> str:
        words = [
            "run",
            "--gpu",
            "t4",
            "--steps",
            str(steps),
            "--format",
            "json",
            "--",
            sys.executable,
            str(script),
        ]
        words += ["--item-ms", str(item_ms), "--workers", str(workers)]
        return "\n".join(invoke(words, cwd=tmp_path).report["fidelity"]["notes"])

    assert "the GPU would wait for data" in notes(20, 7)
    if workers:
        # Three batches of one worker were begun before the first was asked for: they do not tell its pace.
        assert "wait for data" not in notes(20, 2)
