"""Full cover: the largest batch and the script's own evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device
from test_probe_scripts import fits, script, watched

LOADERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Sequences(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        # One item in a hundred is long: three steps are not likely to meet it.
        return torch.zeros(2000 if index % 100 == 77 else 50, 64), index % 4

def pad(items):
    inputs, targets = zip(*items)
    return torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True), torch.tensor(targets)

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
train = DataLoader(Sequences(1000), batch_size=8, collate_fn=pad)
valid = DataLoader(Sequences(40), batch_size=8, collate_fn=pad)
for epoch in range(5):
    model.train()
    for x, y in train:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()).mean(1), y.cuda())
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        print("trained on", tuple(x.shape), flush=True)
    model.eval()
    with torch.no_grad():
        for x, y in valid:
            model(x.cuda())
            print("evaluated", flush=True)
"""


def test_full_cover_runs_the_largest_batch_and_the_scripts_own_evaluation(tmp_path):
    path = script(tmp_path, LOADERS, model=False)
    steps, full = fits(path), fits(path, "--cover", "full")
    assert [steps["coverage"][key] for key in ("evaluation", "largest_batch", "epoch_end")] == [False] * 3
    assert [full["coverage"][key] for key in ("evaluation", "largest_batch", "epoch_end")] == [True] * 3
    assert (steps["steps"], full["steps"]) == (3, 4)
    # Eight items of 2000 instead of 50: the hidden layer's output, and what the ReLU makes of it.
    assert full["peak"]["allocated"] - steps["peak"]["allocated"] > 8 * 1900 * 256 * 4 * 2


def test_a_run_that_ends_early_is_not_said_to_lack_an_evaluation(tmp_path):
    text = LOADERS.replace("        loss.backward()", "        raise ValueError\n        loss.backward()", 1)
    path = script(tmp_path, text.replace("loss = ", "loss = 1 + ", 1), model=False)
    done = watched(path, "--cover", "full")
    assert done.report["verdict"] == "error"
    assert "not-covered" not in [effect["id"] for effect in done.report["fidelity"]["effects"]]


def test_looking_at_the_data_leaves_random_numbers_as_they_were(probe):
    import random

    torch, largest = pytest.importorskip("torch"), probe("largest")
    random.seed(1), torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state().tolist()
    with largest.random_numbers_kept():
        random.random(), torch.randn(3)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (b"abc", 3),
        ([1, 2, 3], 3),
        ({"input_ids": [1] * 7, "label": 1}, 8),
        (("abc", [b"ab", [1.0]]), 6),
        (5, 1),
        (type("Image", (), {"size": (4, 5)})(), 20),
        (memoryview(bytes(9)), 9),
    ],
)
def test_the_size_of_an_item(probe, item, size):
    assert probe("largest").size(item) == size


def test_memory_that_runs_out_in_an_evaluation_is_told_as_such(tmp_path: Path) -> None:
    code = """
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    for _ in range(9):
        # 4 GiB of results for 4 GiB of samples
        model(torch.randn(1 << 24, 64, device=device))
    """
    report = on_device(code, tmp_path, gpu="rtx-4060").report
    assert report["verdict"] == "oom", report
    assert (report["oom"]["evaluation"], report["oom"]["step"]) == (True, 3)
    assert report["coverage"]["evaluation"] is False
