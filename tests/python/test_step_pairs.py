"""`memfit.Step` on a card with batch normalisation, which needs two samples to train on."""

from __future__ import annotations

from pathlib import Path

from runs import invoke
from support import on_device

TRAINING = """
import memfit, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).cuda()
sizes = []

def loss(model, batch):
    sizes.append(len(batch[0]))
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def train(samples, **settings):
    sizes.clear()
    optimizer = torch.optim.AdamW(model.parameters())
    step = memfit.Step(model, optimizer, loss, allow="changes-training", **settings)
    step((torch.randn(samples, 32).cuda(), torch.randint(0, 10, (samples,)).cuda()))
    return list(sizes)
"""
"""Trains one step, and returns the sizes of its micro-batches."""


def test_no_micro_batch_of_the_first_step_has_a_single_sample(tmp_path: Path) -> None:
    counts = list(range(2, 20))
    found = on_device(f"{TRAINING}\nanswer(found=[train(samples) for samples in {counts}])", tmp_path).said
    assert [sum(sizes) for sizes in found["found"]] == counts
    assert all(size > 1 for sizes in found["found"] for size in sizes), found


def test_an_error_that_the_division_may_have_caused_is_not_blamed_on_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{TRAINING}\ntrain(8, micro_batch=1)\n")
    told = invoke(["run", "--gpu", "t4", "--", "python", str(script)], tmp_path)
    text = " ".join(told.stdout.split())
    assert "memfit may have caused this failure" in text, told.stdout
    assert "`memfit.Step` ran a part of a batch by itself (samples 0 to 1 of 8)" in text
