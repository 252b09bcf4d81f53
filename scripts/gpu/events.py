"""Compare PyTorch's memory history of a real GPU with that of the virtual one, event by event.

    python scripts/gpu/measure.py --workloads workloads --history FOLDER      on each GPU
    python scripts/gpu/events.py --pack FOLDER measurements/events-h200.json.gz
    python scripts/gpu/events.py measurements/events-h200.json.gz FOLDER [--page]

An event is a block or a segment that is handed out or freed, with its size; blocks are numbered in the
order in which they were handed out, so that a freed block is the same in both histories. Addresses, stacks
and times are left out. After the first difference, `difflib` finds equal runs.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "measurements/events-on-gpu.md"
# PyTorch's names of events, shortened.
KINDS = {"alloc": "a", "free_completed": "f", "segment_alloc": "s", "segment_free": "u"}


def events(snapshot: Any) -> list[str]:
    """Return the events of a snapshot as texts."""
    found, numbers, count = [], {}, 0
    for entry in (each for trace in snapshot["device_traces"] for each in trace):
        kind = KINDS.get(entry["action"])
        if kind is None:
            continue
        if kind == "a":
            numbers[entry["addr"]] = count
            count += 1
        # A block handed out before the history began has no number.
        which = f" {numbers.get(entry['addr'], '?')}" if kind == "f" else ""
        found.append(f"{kind}{which} {entry['size']}")
    return found


def read(folder: Path) -> dict[str, list[str]]:
    """Return the events of all snapshots of a folder. They are trusted: `measure.py` wrote them."""
    return {file.stem: events(pickle.loads(file.read_bytes())) for file in sorted(folder.glob("*.pickle"))}


def row(name: str, real: list[str], virtual: list[str]) -> str:
    """Compare two histories."""
    same = next(
        (index for index, (one, other) in enumerate(zip(real, virtual, strict=False)) if one != other),
        min(len(real), len(virtual)),
    )
    sizes = [[each.split()[0] + each.split()[-1] for each in side] for side in (real, virtual)]
    matcher = difflib.SequenceMatcher(None, *sizes, autojunk=False)
    share = sum(block.size for block in matcher.get_matching_blocks()) / max(len(real), 1)
    equal = "all" if real == virtual else f"{same:,}"
    return f"| {name} | {len(real):,} | {len(virtual):,} | {equal} | {share:.2%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", type=Path, nargs=2)
    parser.add_argument("--pack", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.pack:
        packed = json.dumps(read(given.paths[0]), separators=(",", ":")).encode()
        given.paths[1].write_bytes(gzip.compress(packed, mtime=0))
        return
    real = json.loads(gzip.decompress(given.paths[0].read_bytes()))
    virtual = read(given.paths[1])
    both = [name for name in real if name in virtual]
    rows = [row(name, real[name], virtual[name]) for name in both]
    whole = sum(real[name] == virtual[name] for name in both)
    text = "\n".join(
        [
            "# A real GPU's memory history and the virtual one's, event by event",
            "",
            "Written by `python scripts/gpu/events.py measurements/events-h200.json.gz FOLDER --page`. Events are blocks and",
            "segments handed out and freed, in their order; sizes are those that were requested. *Equal until* is the first",
            "event that differs; *in order* the share of the real GPU's events that the virtual one has with the same size.",
            "",
            f"{whole} of {len(both)} histories are equal in all {sum(len(real[name]) for name in both if real[name] == virtual[name]):,} events.",
            "",
            "| case | events, real | virtual | equal until | in order |",
            "|---|--:|--:|--:|--:|",
            *rows,
            "",
            "Known differences: cuBLASLt gives cuDNN's 1x1 convolutions 400 bytes of workspace on the real GPU and none on the",
            "virtual one (ResNet, EfficientNet, inference); on the real GPU `GradScaler` skips the first steps (fp16), and",
            "packed sequences and detection depend on values. The rest was not looked into.",
        ]
    )
    print(text)
    if given.page:
        PAGE.write_text(text + "\n")


if __name__ == "__main__":
    main()
