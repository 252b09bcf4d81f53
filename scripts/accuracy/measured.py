"""Measures a case, and reports the result as one line on standard output."""

from __future__ import annotations

import json

PREFIX = "measured: "


def report(**bytes_by_metric: int) -> None:
    """Print the metrics, in bytes."""
    print(PREFIX + json.dumps(bytes_by_metric), flush=True)


def parse(output: str) -> dict[str, int]:
    """Read them back from what a case printed."""
    lines = [line for line in output.splitlines() if PREFIX in line]
    if not lines:
        raise ValueError("the case printed no measurement")
    merged: dict[str, int] = {}
    for line in lines:
        merged.update(json.loads(line.split(PREFIX, 1)[1]))
    return merged


def record() -> None:
    """Start PyTorch's own history of the allocator, without stacks."""
    import torch

    torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=1_000_000)


def recorded_peak() -> int:
    """Return the peak of allocated memory since `record`, computed as from a published snapshot.

    A snapshot has the actual sizes of blocks at its end, and the requested sizes of earlier events. The
    initial memory follows by subtraction; the rest is a running sum.
    """
    import torch

    snapshot = torch.cuda.memory._snapshot()
    at_end = sum(segment["allocated_size"] for segment in snapshot["segments"])
    change = highest = 0
    for event in snapshot["device_traces"][torch.cuda.current_device()]:
        if event["action"] == "alloc":
            change += event["size"]
        elif event["action"] == "free_completed":
            change -= event["size"]
        highest = max(highest, change)
    return at_end - change + highest
