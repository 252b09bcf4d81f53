"""Write docs/overhead.md: what lies on a card outside PyTorch's allocator, from the catalogue's own table.

python scripts/docs/overhead.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "crates/memfit-devices/data/overhead.toml"
TARGET = ROOT / "docs/overhead.md"
KINDS = {
    "context": "CUDA context",
    "context_per_thread": "… and for each thread that can be resident",
    "libraries": "kernels and library handles, while training",
    "per_communicator_nvlink": "one NCCL communicator, NVLink",
    "per_communicator_pcie": "one NCCL communicator, PCIe",
}
INTRODUCTION = """# What lies outside PyTorch's allocator

A GPU holds more than PyTorch's `reserved` memory: the CUDA context, kernels that are loaded when they
are first used, the handles of cuBLAS and cuDNN, NCCL's buffers, and other processes. PyTorch does not
report any of it, so `memfit run` adds it from this table: the *typical* figure for `peak.device`, and the
*high* one for `peak.device_upper`, which is what a virtual out-of-memory error and the verdict are judged by.

The figures are bounds drawn from what people reported publicly, not laws. `--memory` leaves them as they
are; a GPU of your own in a `--catalogue` file may have better ones.

Each interval is for the stacks with which it was seen, as its heading says. CUDA 12 and 13 means torch 2.1 and later, whose
out-of-memory messages tell what a process holds. Totals that were published with torch 1.x and CUDA 10 or 11 mostly lie outside it:
builds for those have an interval of their own, a wide one. A build for any other CUDA takes the nearest, and the report says so.

Written by `python scripts/docs/overhead.py` from `crates/memfit-devices/data/overhead.toml`.
"""


def section(entry: dict[str, Any]) -> str:
    low, high = entry["capability"]
    cards = f"Compute capability {low}" if low == high else f"Compute capability {low} to {high}"
    majors = " and ".join(str(major) for major in entry["cuda_major"])
    lines = [f"## {cards}, CUDA {majors}", "", "| | low | typical | high |", "|---|---|---|---|"]
    for key, words in KINDS.items():
        if key in entry:
            lines.append(
                f"| {words} | " + " | ".join(entry[key][end] for end in ("low", "typical", "high")) + " |"
            )
    lines.append("")
    lines += [f"- {name.replace('_', ' ')}: {source}" for name, source in entry["sources"].items()]
    return "\n".join(lines)


def page() -> str:
    table = tomllib.loads(DATA.read_text())["overhead"]
    return INTRODUCTION + "\n" + "\n\n".join(section(entry) for entry in table) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the page is not what would be written")
    if parser.parse_args().check:
        if not TARGET.exists() or TARGET.read_text() != page():
            sys.exit("docs/overhead.md is not up to date: run python scripts/docs/overhead.py")
        return
    TARGET.write_text(page())


if __name__ == "__main__":
    main()
