"""Measure how long the command and the virtual device take to build after a small change.

    python scripts/structure/build_times.py TREE [TREE...]

Each tree is built first (debug). Then a cost constant, a lint rule and a lever are changed in turn,
both are built again three times each, and everything is put back. A table with the minimum is printed: wall
time and CPU time.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from pathlib import Path

TURNS = 3
# The change, and its possible files: the trees are laid out differently.
CHANGES = {
    "a cost constant": ("crates/memfit-kernels/src/cost/gemm.rs", "crates/memfit-vgpu/src/cost/library.rs"),
    "a lint rule": ("crates/memfit-lint/src/rules/anomaly_mode_left_on.rs",),
    "a lever": (
        "crates/memfit-vocabulary/src/levers/expandable_segments.rs",
        "crates/memfit-plan/src/levers/expandable_segments.rs",
    ),
}
CONSTANT = re.compile(r"(const \w+: f64 = )(\d[\d_.]*)(;)")


def build(tree: Path) -> tuple[float, float]:
    """Return wall time and CPU time in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for what in (["--bin", "memfit"], ["-p", "memfit-vgpu"]):
        subprocess.run(["cargo", "build", "--quiet", *what], cwd=tree, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, spent


def changed(text: str, turn: int) -> str:
    """The text with its first constant a little larger, or with a comment where it has none."""
    larger = CONSTANT.sub(
        lambda found: f"{found[1]}{float(found[2].replace('_', '')) * (1 + turn / 1000):.6f}{found[3]}",
        text,
        count=1,
    )
    return larger if larger != text else f"{text}// {turn}\n"


def main() -> None:
    trees = [Path(argument).resolve() for argument in sys.argv[1:]]
    if not trees:
        sys.exit(__doc__)
    rows = []
    for tree in trees:
        build(tree)
    for name, places in CHANGES.items():
        cells = []
        for tree in trees:
            file = next(tree / place for place in places if (tree / place).is_file())
            text, times = file.read_text(encoding="utf-8"), []
            try:
                for turn in range(1, TURNS + 1):
                    file.write_text(changed(text, turn), encoding="utf-8")
                    times.append(build(tree))
            finally:
                file.write_text(text, encoding="utf-8")
            clock, processor = (min(each) for each in zip(*times, strict=True))
            cells.append(f"{clock:.1f} s ({processor:.1f} s)")
        rows.append([name, *cells])
    print("| after changing |" + "".join(f" {tree.name} |" for tree in trees))
    print("|---|" + "--:|" * len(trees))
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
