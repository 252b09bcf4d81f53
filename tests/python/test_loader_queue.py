"""How many batches the workers of a script's `DataLoader` prepare at the same time in a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import on_device

SCRIPT = """
import os
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

# As on a host with a single CPU.
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

class Items(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.tensor([index, get_worker_info().id])

class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info().id
        return (torch.tensor([index, worker]) for index in range(50))

model = torch.nn.Linear(2, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
iterator = iter(DataLoader({data}(), batch_size=1, num_workers={workers}))
first = iterator._tasks_outstanding
seen, most = [], 0
for batch in iterator:
    seen.append(batch[0].tolist())
    most = max(most, iterator._tasks_outstanding)
    loss = model(batch.to(device).float()).sum()
    loss.backward()
    answer(first=first, seen=seen, most=most)
    optimizer.step()
    optimizer.zero_grad()
"""


def queue_of(folder: Path, **how: Any) -> dict[str, Any]:
    answer = on_device(SCRIPT.format(**how), folder)
    assert answer.report["verdict"] == "fits", answer.output
    return answer.said


def test_more_workers_than_the_host_has_cpus_for_get_few_batches_at_first(tmp_path: Path) -> None:
    said = queue_of(tmp_path, data="Items", workers=6)
    assert said["first"] == 2
    # Batches come in their order, each from the worker that makes it on any host.
    assert said["seen"] == [[index, index % 6] for index in range(len(said["seen"]))]
    # Each batch that arrives quickly allows one more.
    assert said["most"] <= 2 + len(said["seen"])


@pytest.mark.parametrize(("data", "workers"), [("Items", 1), ("Stream", 3)])
def test_other_queues_are_as_long_as_the_script_asks_for(data: str, workers: int, tmp_path: Path) -> None:
    assert queue_of(tmp_path, data=data, workers=workers)["first"] == 2 * workers
