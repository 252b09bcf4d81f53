"""Snapshots that are made for the tests of `memfit view`, and the pages made from them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from runs import MIB, invoke


class Trace:
    """A snapshot of training, written by hand: every block has a segment of its own, which goes back with
    it.
    """

    def __init__(self, file: str = "/home/me/project/train.py", function: str = "forward") -> None:
        self.file, self.function = file, function
        self.events: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.pools: dict[int, tuple[int, int]] = {}
        self.next = 1 << 44
        self.time = 1000

    def event(
        self, action: str, address: int, size: int, frames: list[dict[str, Any]], pool: tuple[int, int]
    ) -> None:
        self.time += 1
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.time,
                "frames": frames,
                "pool_id": pool,
            }
        )

    def alloc(self, size: int, line: int, pool: tuple[int, int] = (0, 0)) -> int:
        frames = [
            {
                "name": "linear",
                "filename": "/env/lib/python3.11/site-packages/torch/nn/functional.py",
                "line": 7,
            },
            {"name": self.function, "filename": self.file, "line": line},
        ]
        address, self.next = self.next, self.next + size
        self.event("segment_alloc", address, size, frames, pool)
        self.event("alloc", address, size, frames, pool)
        self.live[address] = (size, frames)
        self.pools[address] = pool
        return address

    def free(self, address: int) -> None:
        size, frames = self.live.pop(address)
        for action in ("free_requested", "free_completed", "segment_free"):
            self.event(action, address, size, frames, self.pools[address])

    def step(self, blocks: int = 30) -> None:
        kept = [self.alloc(20 * MIB, 40 + block % 7) for block in range(blocks)]
        self.annotate("START")
        workspace = self.alloc(64 * MIB, 90)
        self.free(workspace)
        for address in reversed(kept):
            self.free(address)
        self.annotate("END")

    def annotate(self, stage: str, name: str = "Optimizer.step#SGD.step") -> None:
        self.time += 1
        self.annotations.append({"stage": stage, "name": name, "device": 0, "time_us": self.time})

    def write(self, path: Path) -> Path:
        segments = [
            {
                "device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large",
                "allocated_size": size, "active_size": size, "requested_size": size, "is_expandable": False,
                "segment_pool_id": self.pools[address], "frames": frames,
                "blocks": [
                    {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
                ],
            }
            for address, (size, frames) in self.live.items()
        ]  # fmt: skip
        snapshot = {
            "segments": segments,
            "device_traces": [self.events],
            "external_annotations": self.annotations,
            "allocator_settings": {},
        }
        path.write_bytes(pickle.dumps(snapshot))
        return path


def training(path: Path, steps: int = 12, extra: int = 0, **names: str) -> Path:
    trace = Trace(**names)
    for line in range(4):
        trace.alloc((100 + extra) * MIB, 10 + line)
    for _ in range(steps):
        trace.step()
    return trace.write(path)


def full(path: Path) -> None:
    """A training whose card is full in the second step, which most remedies would have helped."""
    trace = Trace()
    for line in range(4):
        trace.alloc(100 * MIB, 10 + line)
    trace.step()
    module = {
        "name": "_call_impl",
        "filename": "/env/lib/python3.11/site-packages/torch/nn/modules/module.py",
    }
    for block in range(30):
        trace.alloc(20 * MIB, 40 + block % 7)
        trace.events[-1]["frames"] += [
            module | {"line": 1},
            {"name": "main", "filename": trace.file, "line": 5},
        ]
    trace.event("oom", 0, 64 * MIB, [], (0, 0))
    trace.events[-1]["device_free"] = trace.events[-1].pop("addr")
    trace.write(path)


def page(folder: Path, *arguments: str) -> str:
    file = folder / "page.html"
    done = invoke(["view", *arguments, "-o", str(file)], cwd=folder)
    assert done.status == 0, done.stderr
    assert done.stdout == "", "the page is in the file, and nothing on standard output"
    return file.as_uri()
