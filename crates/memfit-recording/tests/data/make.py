"""Writes the small snapshots next to this file: the same contents in each protocol, and the bare list of
segments.
"""

import pickle
from pathlib import Path

BASE = 0x7F00_0000_0000
MIB = 1 << 20


def frame(name: str, line: int) -> dict:
    return {"name": name, "filename": "train.py", "line": line}


def snapshot() -> dict:
    main, step = frame("<module>", 12), frame("step", 7)
    frames = [step, main]
    events = [
        ("segment_alloc", BASE, 2 * MIB, 1_000_001, frames),
        ("alloc", BASE, 100, 1_000_002, frames),
        ("alloc", BASE + 512, 5000, 1_000_003, [main]),
        ("free_requested", BASE, 100, 1_000_004, []),
        ("free_completed", BASE, 100, 1_000_004, []),
        ("alloc", BASE, 512, 1_000_005, frames),
    ]
    trace = [
        {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time, "frames": stack}
        for action, address, size, time, stack in events
    ]
    oom = {
        "action": "oom",
        "device_free": 3 * MIB,
        "size": 4 * MIB,
        "stream": 0,
        "time_us": 1_000_006,
        "frames": frames,
    }
    blocks = [
        {"address": BASE, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": frames},
        {
            "address": BASE + 512,
            "size": 5120,
            "requested_size": 5000,
            "state": "active_pending_free",
            "frames": [main],
        },
        {
            "address": BASE + 5632,
            "size": 2 * MIB - 5632,
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        },
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 2 * MIB,
        "allocated_size": 512,
        "active_size": 5632,
        "requested_size": 5512,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 1),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128",
        "max_split_size": 128 * MIB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": True,
        "roundup_power2_divisions": {"1": 0, "2": 4},
    }
    annotations = [{"stage": "START", "name": "step 1", "device": 0, "time_us": 1_000_000}]
    return {
        "segments": [segment],
        "device_traces": [[*trace, oom], []],
        "allocator_settings": settings,
        "external_annotations": annotations,
    }


def backward() -> dict:
    """Return the events of a backward pass in anomaly mode, with and without native frames of its own."""
    lines = [
        '  File "train.py", line 12, in <module>\n    step()\n',
        '  File "train.py", line 7, in step\n    loss = model(x)\n           ^^^^^^^^\n',
    ]
    engine = {"name": "torch::autograd::Engine::thread_main()", "filename": "??", "line": 0}
    trace = [
        {
            "action": "alloc",
            "addr": BASE + 512 * index,
            "size": 512,
            "stream": 0,
            "time_us": 1_000_000 + index,
            "forward_frames": lines,
            "frames": frames,
        }
        for index, frames in enumerate([[], [engine]])
    ]
    return {"segments": [], "device_traces": [trace]}


def main() -> None:
    folder = Path(__file__).parent
    for protocol in range(2, 6):
        (folder / f"small-{protocol}.pickle").write_bytes(pickle.dumps(snapshot(), protocol=protocol))
    (folder / "segments.pickle").write_bytes(pickle.dumps(snapshot()["segments"], protocol=4))
    (folder / "backward.pickle").write_bytes(pickle.dumps(backward(), protocol=4))


if __name__ == "__main__":
    main()
