"""One process that sees several GPUs: the peak of each, and what is said of GPUs that it leaves idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import invoke

MIB = 1 << 20
LAYER = 4 * (4096 * 4096 + 4096)

HEAD = """
import torch
from torch import nn

def layers(count, device):
    return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(count)]).to(device)

def train(forward, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        forward(torch.randn(8, 4096)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
SPLIT = """
first, second = layers({first}, "cuda:0"), layers({second}, "cuda:1")
train(
    lambda inputs: second(first(inputs.cuda()).to("cuda:1")), [*first.parameters(), *second.parameters()]
)
"""
CASES = {
    "one of two": (
        'model = layers(4, "cuda"); train(lambda inputs: model(inputs.cuda()), model.parameters())'
    ),
    "the second of two": (
        'model = layers(4, "cuda:1"); train(lambda inputs: model(inputs.to("cuda:1")), model.parameters())'
    ),
    "even": SPLIT.format(first=3, second=3),
    "uneven": SPLIT.format(first=6, second=2),
    "replicated": (
        'model = nn.DataParallel(layers(4, "cuda")); '
        "train(lambda inputs: model(inputs.cuda()), model.parameters())"
    ),
}


def run(case: str, folder: Path, *options: str) -> Any:
    script = folder / "train.py"
    script.write_text(f"{HEAD}\n{CASES[case]}\n")
    return invoke(["run", "--gpu", "t4:2", "--no-prove", *options, "--", "python", str(script)], folder)


@pytest.mark.parametrize(
    ("case", "used", "remark"),
    [
        ("one of two", [0], "only GPU 0 of 2 was used"),
        ("the second of two", [1], "only GPU 1 of 2 was used"),
        ("even", [0, 1], None),
        ("uneven", [0, 1], "the GPUs are used unevenly"),
        ("replicated", [0, 1], "`nn.DataParallel` copies the model to every GPU"),
    ],
)
def test_the_report_has_the_peak_of_each_gpu(
    case: str, used: list[int], remark: str | None, tmp_path: Path
) -> None:
    report = run(case, tmp_path, "--format", "json").report
    assert report["verdict"] == "fits"
    assert [gpu["gpu"] for gpu in report["gpus"]] == [0, 1]
    assert [gpu["gpu"] for gpu in report["gpus"] if gpu["device"]] == used
    assert max(gpu["device_upper"] for gpu in report["gpus"]) == report["peak"]["device_upper"]
    remarks = ("was used:", "used unevenly", "DataParallel")
    said = [note for note in report["fidelity"]["notes"] if any(each in note for each in remarks)]
    assert len(said) == (remark is not None)
    assert remark is None or said[0].startswith(remark)


def test_layers_to_move_are_told_in_bytes(tmp_path: Path) -> None:
    report = run("uneven", tmp_path, "--format", "json").report
    first, second = (gpu["device_upper"] for gpu in report["gpus"])
    # Weights and gradients: four layers more on the first GPU, of which two would have to move.
    assert abs((first - second) / 2 - 4 * LAYER) < 32 * MIB
    told = next(note for note in report["fidelity"]["notes"] if "unevenly" in note)
    assert f"layers with about {(first - second) / 2 / MIB:.0f} MiB from GPU 0 to the others" in told


def test_people_read_which_gpu_is_used(tmp_path: Path) -> None:
    text = " ".join(run("one of two", tmp_path).stdout.split())
    assert "on one of 2 virtual Tesla T4" in text
    assert "1: not used" in text
    text = " ".join(run("uneven", tmp_path).stdout.split())
    assert "on 2 virtual Tesla T4" in text
    assert "used on GPU 0" in text


def test_a_plan_for_several_gpus_says_that_the_script_uses_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{HEAD}\n{CASES['one of two']}\n")
    told = invoke(["plan", "--gpu", "t4:2", "--", "python", str(script)], tmp_path).stdout
    text = " ".join(told.split())
    assert "FITS AS IS for the 3 steps that ran, on one of 2 virtual Tesla T4" in text
    assert "used on each" not in text
