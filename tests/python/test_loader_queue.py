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
first = len(iterator._task_info)
seen, most = [], 0
for batch in iterator:
    seen.append(batch[0].tolist())
    most = max(most, len(iterator._task_info))
    loss = model(batch.to(device).float()).sum()
    loss.backward()
    answer(first=first, seen=seen, most=most)
    optimizer.step()
    optimizer.zero_grad()
"""


# The first batch arrives after the second one, and the queue grows to its full length.
GROWING = """
import os
import memfit_probe.loader_queue
from torch.utils.data import DataLoader, Dataset

memfit_probe.loader_queue.SHORT_WAIT_NS = 1 << 62
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
SECOND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "second")
os.mkfifo(SECOND)

class Items(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index < 2 and not os.path.exists(SECOND + " done"):
            # Each waits for the other one to open the pipe, and the first one then for the second one's word.
            with open(SECOND, "r" if index == 0 else "w") as pipe:
                pipe.read() if index == 0 else pipe.write("here")
            if index == 0:
                open(SECOND + " done", "w").close()
        return torch.tensor([index])

loader = DataLoader(Items(), batch_size=1, num_workers=3{options})
seen, lengths = [], []
for epoch in range(2):
    iterator = iter(loader)
    for batch in iterator:
        seen.append(batch.item())
        lengths.append(len(iterator._task_info))
answer(seen=seen, lengths=lengths)
model = torch.nn.Linear(1, 1).to(device)
model(torch.ones(1, 1, device=device)).sum().backward()
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


@pytest.mark.parametrize("options", ["", ", persistent_workers=True", ", in_order=False"])
def test_a_queue_grows_to_its_length_with_batches_that_arrive_before_their_turn(
    options: str, tmp_path: Path
) -> None:
    answer = on_device(GROWING.replace("{options}", options), tmp_path)
    assert answer.status == 0, answer.output
    epochs = [answer.said["seen"][:60], answer.said["seen"][60:]]
    lengths = answer.said["lengths"]
    assert [sorted(epoch) for epoch in epochs] == [list(range(60))] * 2
    assert max(lengths) == 6
    if "in_order" not in options:
        assert epochs == [list(range(60))] * 2
        assert lengths[0] == 2
        assert lengths[:40] == sorted(lengths[:40])
