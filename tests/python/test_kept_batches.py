"""Tries that are forked from one process load batches once, and are what they would be otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import hold_to_shapes, memfit
from tiers import rarely

pytest.importorskip("torch")

# Sequences of random lengths, shuffled: the peak depends on every random number that loading draws. Each item
# that is loaded leaves a byte behind.
SCRIPT = """
import os, random, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COUNT = os.open("loaded.bin", os.O_WRONLY | os.O_APPEND)

class Sequences(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        os.write(COUNT, b".")
        {extra}
        return torch.randn(random.randrange(1, 4) * 32, 256), index

def together(items):
    longest = max(len(each) for each, _ in items)
    x = torch.stack([nn.functional.pad(each, (0, 0, 0, longest - len(each))) for each, _ in items])
    return {{"x": x, "index": [index for _, index in items], "drawn": torch.rand(())}}

torch.manual_seed(0)
random.seed(0)
loader = DataLoader(Sequences(), batch_size=16, shuffle=True, collate_fn=together, {options})
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
drawn = []
for epoch in range(2):
    for batch in loader:
        x = batch["x"].to("cuda", non_blocking=True)
        drawn.append(batch["drawn"].item())
        noise = torch.randn(int(torch.rand(()) * 8) + 1, 1024, 1024).cuda()
        batch["x"].zero_()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
GPUS = ("l4", "rtx-4060", "rtx-4090", "l40s")


def swept(folder: Path, script: str, *options: str) -> tuple[list[dict[str, Any]], int]:
    """The rows of a table with a run on each GPU, and the number of items that were loaded for it."""
    (folder / "train.py").write_text(script)
    (folder / "loaded.bin").write_bytes(b"")
    of = [word for name in GPUS for word in ("--gpu", name)]
    command = ["cards", "--quiet", "--format", "json", "--steps", "6", "--prove", *options, *of]
    done = subprocess.run(
        [memfit(), *command, "--", sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = hold_to_shapes(json.loads(done.stdout))["rows"]
    return rows, len((folder / "loaded.bin").read_bytes())


def swept_with_nothing_kept(folder: Path, script: str) -> list[dict[str, Any]]:
    """The same with a complex number in each batch, which is nothing that is kept."""
    kept_nowhere = script.replace("torch.rand(())}", 'torch.rand(()), "kind": 1j}')
    assert kept_nowhere != script
    folder.mkdir()
    rows, loaded = swept(folder, kept_nowhere)
    assert loaded >= 5 * 96
    return rows


def peaks(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["peak"]["allocated"], row["peak"]["reserved"]) for row in rows]


@pytest.mark.parametrize("options", [rarely(""), "num_workers=2, pin_memory=True"])
def test_batches_are_loaded_once_and_every_run_is_as_it_was(tmp_path: Path, options: str) -> None:
    script = SCRIPT.format(options=options, extra="")
    rows, loaded = swept(tmp_path, script)
    assert {row["evidence"] for row in rows} == {"run"}
    # Six batches of sixteen, those that workers loaded ahead, and the whole set in search of large items.
    assert 96 <= loaded <= 128 + 64
    assert peaks(rows) == peaks(swept_with_nothing_kept(tmp_path / "again", script))


def test_numbers_that_numpy_draws_are_the_same_in_each_run(tmp_path: Path) -> None:
    # Loading is the first to use NumPy's generator, and the step goes on with it.
    script = SCRIPT.replace("import torch\n", "import numpy, torch\n").format(
        options="", extra="assert numpy.random.rand() is not None"
    )
    script = script.replace("torch.rand(()) * 8", "numpy.random.rand() * 8")
    rows, loaded = swept(tmp_path, script)
    assert 96 <= loaded <= 128 + 64
    assert peaks(rows) == peaks(swept_with_nothing_kept(tmp_path / "again", script))


def test_items_that_are_made_on_the_gpu_are_made_in_each_run(tmp_path: Path) -> None:
    rows, loaded = swept(tmp_path, SCRIPT.format(options="", extra="torch.ones(1 << 20, device='cuda')"))
    assert len(rows) == len(GPUS)
    assert loaded >= 5 * 96


def test_a_run_that_draws_other_numbers_loads_by_itself(tmp_path: Path) -> None:
    script = SCRIPT.format(options="", extra="").replace(
        "optimizer = ", "torch.rand(torch.cuda.get_device_properties(0).multi_processor_count)\noptimizer = "
    )
    _, loaded = swept(tmp_path, script)
    # The GPU that stands for the others has drawn the same numbers as in the first run.
    assert loaded >= 4 * 96


MADE_UP = """
import os, torch, torchvision
from torch.utils.data import DataLoader

COUNT = os.open("loaded.bin", os.O_WRONLY | os.O_APPEND)

def counted(image):
    os.write(COUNT, b".")
    return torchvision.transforms.functional.to_tensor(image)

pictures = torchvision.datasets.CIFAR10("nowhere", transform=counted)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in DataLoader(pictures, batch_size=512, shuffle=True):
    torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
    optimizer.step()
"""


def test_made_up_samples_are_loaded_once(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    rows, loaded = swept(tmp_path, MADE_UP, "--synthetic-data")
    assert len(rows) == len(GPUS)
    # Six batches of one run of five.
    assert 6 * 512 <= loaded < 2 * 6 * 512


LATE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

# Creates its generator when it is first iterated, as Accelerate's sampler does.
class Late(Sampler):
    generator = None
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __iter__(self):
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(7)
        yield from torch.randperm(self.count, generator=self.generator).tolist()

data = TensorDataset(torch.randn(64, 256))
loader = DataLoader(data, batch_size=16, sampler=Late(64))
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_sampler_may_create_its_generator_late(tmp_path: Path) -> None:
    (tmp_path / "loaded.bin").touch()
    rows, _ = swept(tmp_path, LATE)
    assert [row["verdict"] for row in rows] == ["fits-as-is"] * len(GPUS), rows
