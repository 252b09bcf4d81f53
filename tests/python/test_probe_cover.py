"""Full cover: the largest batch and the script's own evaluation."""

from __future__ import annotations

import pytest
from test_probe_scripts import fits, script

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
