"""The reference workloads are correct scripts by themselves: each trains on the CPU at a small size."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "workloads"

SMALL = {
    "feed_forward": "--width 16 --layers 2 --batch-size 4",
    "resnet": "--arch resnet18 --batch-size 2 --image-size 32 --classes 4 --steps 2",
    "bert": "--layers 1 --hidden 64 --heads 2 --vocabulary 100 --sequence 16 --batch-size 2 "
    "--padding --steps 2",
    "gpt2": "--layers 1 --hidden 64 --heads 2 --vocabulary 100 --sequence 16 --batch-size 2 "
    "--gradient-checkpointing --steps 2",
    "t5": "--layers 1 --hidden 64 --heads 2 --vocabulary 100 --source 16 --target 8 --batch-size 2 --steps 2",
    "unet": "--image-size 32 --width 4 --depth 2 --steps 2",
    "unet3d": "--volume-size 16 --batch-size 1 --width 4 --steps 2",
    "checkpointed": "--layers 2 --width 32 --heads 2 --vocabulary 50 --sequence 16 --batch-size 2 "
    "--checkpoint --steps 2",
    "lstm": "--layers 2 --width 32 --vocabulary 50 --sequence 8 --batch-size 4 --packed --steps 2",
    "compiled": "--eager --width 64 --layers 1 --batch-size 2 --sequence 16 --steps 2",
    "vit": "--image-size 32 --layers 1 --width 32 --heads 2 --batch-size 2 --optimizer fused --steps 2",
    "accumulate": "--image-size 32 --batch-size 2 --accumulate 2 --steps 2",
    "evaluate": "--image-size 32 --batch-size 4 --eval-batch-size 8 --train-images 8 "
    "--test-images 16 --epochs 2",
    "gan": "--latent 8 --width 4 --batch-size 4 --critic-steps 2 --steps 2",
    "detection": "--image-size 64 --batch-size 1 --objects 2 --steps 1",
    "inference": "--arch resnet18 --image-size 32 --batch-size 2 --batches 2",
    "late_import": "--width 8 --batch-size 4 --steps 2",
    "says_its_peak": "--image-size 32 --batch-size 2 --steps 1",
    "llama": "--layers 2 --hidden 64 --intermediate 128 --heads 4 --key-value-heads 2 --vocabulary 100 --sequence 16 "
    "--batch-size 2 --lora 2 --steps 2",
    "diffusion": "--image-size 16 --width 32 --batch-size 2 --steps 2",
    "catch_oom": "--image-size 32 --batch-size 4 --steps 2",
}


def run_here(script: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script, *arguments.split()])
    runpy.run_path(str(WORKLOADS / script), run_name="__main__")


@pytest.mark.parametrize("name", SMALL)
def test_trains_on_the_cpu(name, monkeypatch, capsys):
    run_here(f"{name}.py", SMALL[name], monkeypatch)
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed, "a workload says what it did"
    assert "nan" not in printed[-1]


def test_the_trainer_trains_and_evaluates(monkeypatch, capsys, tmp_path):
    small = (
        "--layers 1 --hidden 64 --vocabulary 100 --sequence 16 --batch-size 2 --eval-batch-size 2 --steps 2"
    )
    run_here("trainer.py", f"{small} --output {tmp_path}", monkeypatch)
    assert "eval_loss" in capsys.readouterr().out


def test_the_package_trains(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(WORKLOADS))
    small = "--width 32 --layers 1 --heads 2 --sequence 8 --steps 2"
    monkeypatch.setattr(sys, "argv", ["tagger", *small.split()])
    runpy.run_module("tagger", run_name="__main__")
    assert capsys.readouterr().out.startswith("step 0 loss")


def test_every_workload_is_tried():
    tried = {f"{name}.py" for name in SMALL} | {"trainer.py"}
    elsewhere = {"distributed.py", "failing.py", "graphed.py", "stalled.py"}
    assert {path.name for path in WORKLOADS.glob("*.py")} == tried | elsewhere


def test_the_example_learns(monkeypatch, capsys, tmp_path):
    small = "--arch resnet18 --image-size 32 --batch-size 16 --epochs 1 --workers 0"
    small += " --train-images 192 --test-images 32"
    checkpoint = tmp_path / "classifier.pt"
    monkeypatch.setattr(sys, "argv", ["train.py", *small.split(), "--checkpoint", str(checkpoint)])
    runpy.run_path(str(ROOT / "examples/classifier/train.py"), run_name="__main__")
    printed = capsys.readouterr().out
    accuracy = float(printed.split("train loss")[1].split("accuracy ")[1].split("%")[0])
    assert accuracy > 25, "ten classes, so chance is 10 %"
    assert checkpoint.is_file()
