"""Compares the choice of blocks with the integer program of `torch.distributed._tools` on the same problems:
cost and time to solve.

    cargo build --release -p memfit-plan --example choose
    python scripts/plan/ilp.py [--solver target/release/examples/choose]

Needs PuLP, which includes a solver. torch's program expects a tree of modules with the bytes and time of
each; here it is a root with the blocks below it, each of which is recomputed as a whole or not at all, and a
last leaf for the loss. Its default tolerance (within 5 % of the optimum) and time limit are used. Writes
measurements/plan-ilp.md.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

from torch.distributed._tools.ilp_utils import Graph
from torch.distributed._tools.sac_ilp import sac_milp

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


def problems() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, count, alike in (
        ("12 equal", 12, True),
        ("48 equal", 48, True),
        ("12 different", 12, False),
        ("24 different", 24, False),
        ("48 different", 48, False),
    ):
        numbers = random.Random(count)
        blocks = []
        for _ in range(count):
            keep = 300 << 20 if alike else numbers.randrange(100 << 20, 900 << 20)
            millis = 8.0 if alike else numbers.uniform(2.0, 20.0)
            blocks.append([keep, keep // 20, int(millis * 1e6)])
        everything, tail = sum(block[0] for block in blocks), 1 << 30
        for share in (0.4, 0.6, 0.8):
            budget = int(everything * share) + tail
            found.append((f"{name}, {share:.0%}", {"blocks": blocks, "tail": tail, "budget": budget}))
    return found


def tree(problem: dict[str, Any]) -> Graph:
    """The problem as torch's program wants it."""
    blocks = problem["blocks"]
    names = ["model", *(f"model.{index}" for index in range(len(blocks))), "model.loss"]
    graph = Graph(len(names))
    graph.fw_post_order = [*names[1:], "model"]
    kept, everything = 0, sum(block[0] for block in blocks)
    for index, name in enumerate(names):
        block = blocks[index - 1] if 0 < index <= len(blocks) else None
        last = name == "model.loss"
        discarded = block[0] - block[1] if block else 0
        graph.add_node(
            {
                "fqn": name,
                "param_per_module": 0,
                "grad_total": 0,
                "act_fw_per_module": discarded,
                "sac_memory": max(discarded, 1),
                # While its turn lasts a block has all of it.
                "act_grad_per_module": block[0] if block else problem["tail"] if last else 0,
                # The root's forward ends last, with all that is left.
                "act_total": kept if index else everything,
                "is_leaf": block is None and name != "model",
                "sac_runtime": block[2] / 1e6 if block else 0.0,
                # Computed again as a whole.
                "n_segments": 1,
                "slopes": [0.0],
                "intercepts": [1.0],
                "index": index,
                "pos_fw_post_order": graph.fw_post_order.index(name),
            }
        )
        if block:
            kept += block[0]
    # All stand below the root.
    graph.ad_matrix[0, :] = 1
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solver", type=Path, default=ROOT / "target/release/examples/choose")
    options = parser.parse_args()
    rows = [
        "| blocks, share kept | extra time, memfit, ms | extra time, PyTorch, ms | solving time, memfit | solving time, PyTorch | ratio |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for name, problem in problems():
        line = json.dumps(problem) + "\n"
        done = subprocess.run([options.solver], input=line, capture_output=True, text=True, check=True)
        ours = json.loads(done.stdout)
        units = [f"model.{index}" for index in range(len(problem["blocks"]))]
        begin = time.perf_counter()
        _, theirs, peak = sac_milp(tree(problem), problem["budget"] / GIB, ac_units=units)
        took = time.perf_counter() - begin
        mine = ours["extra_ns"] / 1e6
        told = f"{theirs:.2f}" if peak >= 0 else "no solution"
        times = took / (ours["solve_ns"] / 1e9)
        rows.append(
            f"| {name} | {mine:.2f} | {told} | {ours['solve_ns'] / 1e6:.2f} ms | {took * 1e3:.0f} ms | {times:.0f} |"
        )
        print(rows[-1], flush=True)
    path = ROOT / "measurements" / "plan-ilp.md"
    path.write_text(TEXT + "\n".join(rows) + "\n")


TEXT = """# Blocks to recompute: memfit compared with PyTorch's integer program

Written by `scripts/plan/ilp.py`. Activation checkpointing of some blocks has to keep a memory budget at the least extra time.
memfit's solver and the integer program of `torch.distributed._tools` get the same problems: a number of blocks, equal or
different, and the share of their activations that may be kept. *Extra time* is the recomputation time of the chosen blocks.

Solving times depend on the machine, which was busy (several times as many processes as its two cores). Both were measured in
turn within one run. PyTorch's time includes building the program and starting the solver.

"""

if __name__ == "__main__":
    main()
