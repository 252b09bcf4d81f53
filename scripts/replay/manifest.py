"""Write a manifest of a folder of snapshots, read with Python's own pickle: counts for `memfit` to find.

    python scripts/replay/manifest.py crates/memfit-recording/tests/programs

Only for snapshots of one's own: unpickling executes what a file says.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def entry(file: Path) -> dict[str, Any]:
    """Counts of one snapshot."""
    snapshot = pickle.loads(file.read_bytes())
    segments, traces = snapshot["segments"], snapshot["device_traces"]
    return {
        "file": file.name,
        "segments": len(segments),
        "blocks": sum(len(segment["blocks"]) for segment in segments),
        "reserved": sum(segment["total_size"] for segment in segments),
        "expandable_segments": sum(bool(segment.get("is_expandable")) for segment in segments),
        "events": [len(trace) for trace in traces],
        "actions": Counter(event["action"] for trace in traces for event in trace),
        "conf": snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", ""),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    entries = [entry(file) for file in sorted(folder.glob("*.pickle"))]
    (folder / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n")
    print(f"{len(entries)} snapshots")


if __name__ == "__main__":
    main()
