"""`memfit replay`: PyTorch's own allocator followed to the byte, and recorded runs made again with something
different.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from contract import check_document
from runs import MIB, invoke
from script_modules import load_scripts

agreement, differential = load_scripts("scripts/replay", "agreement", "differential")

SCRIPT = """\
import torch
from torch import nn

def train(device, width):
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(4):
        batch = torch.randn(256, width, device=device)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device=device))

train("cuda:0", 256)
train("cuda:1", 1024)
"""
LEAK = "train.py:13"


def test_the_replay_follows_pytorch_under_every_setting(tmp_path: Path) -> None:
    differential.programs(sys.executable, tmp_path, first=0, count=1, steps=250)
    found = list(differential.compared(tmp_path))
    wrong = {facts["setting"]: result["wrong"] for _, facts, result in found if "wrong" in result}
    assert wrong == {}
    settings = {facts["setting"] for _, facts, _ in found}
    assert len(settings) >= 12, "older releases lack some settings"
    refused = {json.loads(file.read_text())["setting"] for file in tmp_path.glob("*.not-run")}
    assert settings | refused == set(agreement.SETTINGS) - {agreement.ASYNC}, "none is dropped without a word"
    assert sum(result["addresses"] for *_, result in found) > 100 * len(settings)
    assert sum(result["statistics"] for *_, result in found) > 80 * len(settings)
    assert sum(facts["failures"] for _, facts, _ in found) > 0, "the card was full at times"


def test_a_setting_that_did_not_run_is_listed_with_the_reason(tmp_path: Path) -> None:
    release: dict[str, Any] = {"torch": "2.13.0+cu130", "settings": {}}
    assert "did not go through" not in differential.page([release])
    facts = {"setting": "large_segment_size_mb:64", "reason": "Unrecognized key 'large_segment_size_mb'"}
    (tmp_path / "setting-07.not-run").write_text(json.dumps(facts))
    for _ in range(2):
        differential.note_not_run(release, tmp_path)
        differential.add(release["settings"], facts["setting"], "a trace", {}, 0)
    row = "| 2.13.0 | `large_segment_size_mb:64` | 2 | Unrecognized key 'large_segment_size_mb' |"
    assert row in differential.page([release])


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    (folder / "train.py").write_text(SCRIPT)
    file = folder / "run.memfit"
    run = ["run", "--gpu", "t4:2", "--steps", "0", "-o", str(file), "--format", "json"]
    answer = invoke([*run, "--", sys.executable, "train.py"], cwd=folder)
    assert answer.status == 0, answer.stderr
    return file


def replay(file: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    answer = invoke(["replay", str(file), "--format", "json", *arguments])
    assert answer.status == status, answer.stderr
    document = json.loads(answer.stdout)
    check_document(document)
    return document


def test_a_recorded_run_is_replayed_device_by_device(recording: Path) -> None:
    fullest = replay(recording)
    assert fullest["device"] == 1, "the device that was fullest"
    assert fullest["devices"] == [0, 1]
    assert fullest["addresses"]["predicted"] == fullest["addresses"]["matching"] > 50
    assert fullest["segments"]["predicted"] == fullest["segments"]["matching"] > 5
    other = replay(recording, "--device", "0")
    assert other["peak"]["reserved"] < fullest["peak"]["reserved"]
    assert "rank 3" in invoke(["replay", str(recording), "--rank", "3"]).stderr


def test_another_capacity_leaves_garbage_collection_on(tmp_path: Path) -> None:
    larger = "import torch\nfor mib in (100, 120, 140, 160):\n"
    larger += "    torch.empty(mib << 20, dtype=torch.uint8, device='cuda')\n"
    (tmp_path / "train.py").write_text(larger)
    file = tmp_path / "run.memfit"
    run = ["run", "--gpu", "t4", "--steps", "0", "-o", str(file), "--format", "json"]
    invoke([*run, "--", sys.executable, "train.py"], cwd=tmp_path)
    of_gpu = ("--capacity", "1GiB", "--alloc-conf")
    threshold, fraction = "garbage_collection_threshold:0.3", "per_process_memory_fraction:0.9"
    plain = replay(file, "--capacity", "1GiB")
    assert plain["peak"]["reserved"] == 520 * MIB, "each block is too small for the next tensor"
    collected = replay(file, *of_gpu, f"{threshold},{fraction}")
    assert collected["peak"]["reserved"] < 0.3 * 0.9 * 1024 * MIB + 160 * MIB
    assert collected["under"]["capacity"] == plain["under"]["capacity"]
    # Without a fraction, PyTorch collects nothing, and the report says so.
    idle = replay(file, *of_gpu, threshold)
    assert idle["peak"]["reserved"] == plain["peak"]["reserved"]
    assert any("does nothing here" in problem for problem in idle["problems"])


def test_replays_without_a_leak_and_with_smaller_blocks(recording: Path) -> None:
    plain = replay(recording)["peak"]
    dropped = replay(recording, "--without", LEAK)
    [change] = dropped["changes"]
    assert (change["of"], change["effect"], change["blocks"]) == (LEAK, "drop", 4)
    # The peak is when the last step's gradients are there, and its leak not yet.
    assert change["at_peak"] == 192 * MIB
    assert dropped["peak"]["allocated"] <= plain["allocated"] - 192 * MIB
    assert dropped["recorded"]["peak"] == plain
    again = dropped["recorded"]["again"]
    assert again["allocated"] == plain["allocated"], "the same calls need the same, wherever they lie"
    each = replay(recording, "--each-step", LEAK)["peak"]
    assert dropped["peak"]["allocated"] <= each["allocated"] <= plain["allocated"] - 128 * MIB
    half = replay(recording, "--scale", f"{LEAK}=0.5")["peak"]
    assert dropped["peak"]["allocated"] < half["allocated"] < plain["allocated"]
    optimizer = replay(recording, "--scale", "optimizer=0", "--scale", "parameters=0.5")
    assert [change["of"] for change in optimizer["changes"]] == ["optimizer", "parameters"]
    assert optimizer["peak"]["allocated"] < plain["allocated"]
    # If it would not have fitted, the leak decides: with both, the answer is mixed.
    small = "300MiB"
    assert replay(recording, "--capacity", small, status=1)["oom"] is not None
    assert replay(recording, "--capacity", small, "--without", LEAK)["oom"] is None


def test_an_unknown_rank_device_or_line_is_reported_with_the_known_ones(recording: Path) -> None:
    answer = invoke(["replay", str(recording), "--without", "train.py:999"])
    assert answer.status == 2
    assert "train.py:999" in answer.stderr
    assert LEAK in answer.stderr, "what could have been named"
    assert "0.5" in invoke(["replay", str(recording), "--scale", "activations"]).stderr
    text = invoke(["replay", str(recording), "--without", LEAK]).stdout
    assert "not allocated" in " ".join(text.split())
