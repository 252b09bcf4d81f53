"""Measures a case, and reports the result as one line on standard output."""

from __future__ import annotations

import json
from typing import Any

PREFIX = "measured: "
# Begins the line that names a case, where several follow each other in one process.
MARK = "case: "


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


def peak_of(snapshot: dict[str, Any]) -> dict[str, int]:
    """Return the peaks of a snapshot's first recorded device, and what was allocated before its first event.

    A snapshot has the actual sizes of blocks at its end, and the requested sizes of earlier events. The
    initial memory follows by subtraction; the rest is a running sum. Segments are counted in the same way.
    """
    ends = {
        "allocated": sum(segment["allocated_size"] for segment in snapshot["segments"]),
        "reserved": sum(segment["total_size"] for segment in snapshot["segments"]),
    }
    signs = {
        "allocated": {"alloc": 1, "free_completed": -1},
        "reserved": {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1},
    }
    events = next((trace for trace in snapshot["device_traces"] if trace), [])
    found = {}
    for metric, at_end in ends.items():
        change = highest = 0
        for event in events:
            change += signs[metric].get(event["action"], 0) * event["size"]
            highest = max(highest, change)
        found[metric] = at_end - change + highest
        found[f"{metric}_before"] = at_end - change
    return found


def recorded_peak() -> int:
    """Return the peak of allocated memory since `record`, computed as from a published snapshot."""
    import torch

    return peak_of(torch.cuda.memory._snapshot())["allocated"]
