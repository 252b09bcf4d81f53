"""Random programs for PyTorch's real allocator, each with its snapshot and its statistics.

    memfit run --gpu rtx-3060 --steps 0 -- python scripts/replay/random_programs.py FOLDER [--programs N] [--seed N]

Runs on a virtual card or on a real one. Each program starts from an empty cache and ends with a snapshot of its whole
trace; `FOLDER` can then be given to the tests of memfit-allocator, as MEMFIT_TEST_SNAPSHOTS. The settings are those of
PYTORCH_ALLOC_CONF (PYTORCH_CUDA_ALLOC_CONF before 2.9).
"""

import argparse
import json
import pickle
import random
from pathlib import Path

import torch

MIB = 1 << 20
SPECIAL = [1, 511, 512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 19 * MIB, 20 * MIB, 21 * MIB]


def size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.35:
        return rng.randrange(1, 8192)
    if kind < 0.6:
        return rng.randrange(1, MIB + 1)
    if kind < 0.85:
        return rng.randrange(MIB, 10 * MIB)
    if kind < 0.95:
        return rng.randrange(10 * MIB, 200 * MIB)
    return rng.choice(SPECIAL)


def capture(rng: random.Random, graphs: list) -> list:
    """Captures a graph, or drops one. Returns tensors that outlive the capture."""
    if graphs and rng.random() < 0.3:
        graphs.pop(rng.randrange(len(graphs)))
        return []
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(rng.randrange(1, 12)):
            tensor = torch.empty(size(rng), dtype=torch.uint8, device="cuda")
            if rng.random() < 0.3:
                kept.append(tensor)
    graphs.append(graph)
    return kept


def program(rng: random.Random, steps: int, streams: list, pool: object | None, graphs: list | None) -> int:
    """One program. Returns how often it ran out of memory."""
    live = []
    failures = 0
    for _ in range(steps):
        action = rng.random()
        if graphs is not None and rng.random() < 0.03:
            live += capture(rng, graphs)
        elif pool is not None and rng.random() < 0.1:
            try:
                with torch.cuda.use_mem_pool(pool):
                    live += [torch.empty(size(rng), dtype=torch.uint8, device="cuda") for _ in range(4)]
            except torch.OutOfMemoryError:
                failures += 1
        elif action < 0.55 or not live:
            # The side stream is for a few blocks only, as in real programs.
            stream = streams[0] if rng.random() < 0.85 else streams[1]
            with torch.cuda.stream(stream):
                try:
                    live.append(torch.empty(size(rng), dtype=torch.uint8, device="cuda"))
                except torch.OutOfMemoryError:
                    failures += 1
                    del live[: len(live) // 2]
        elif action < 0.95:
            live.pop(rng.randrange(len(live)))
        elif action < 0.98:
            rng.choice(live).record_stream(streams[2])
        elif action < 0.99:
            torch.cuda.synchronize()
        else:
            torch.cuda.empty_cache()
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fraction", type=float)
    parser.add_argument("--pool", action="store_true", help="some allocations from a pool of their own")
    parser.add_argument("--graphs", action="store_true", help="some allocations while a graph is captured")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    if arguments.fraction:
        torch.cuda.set_per_process_memory_fraction(arguments.fraction)
    total = torch.cuda.mem_get_info()[1]
    for number in range(arguments.programs):
        rng = random.Random(arguments.seed * 1_000_003 + number)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(enabled="all", context=None)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        pool = torch.cuda.MemPool() if arguments.pool else None
        graphs = [] if arguments.graphs else None
        failures = program(rng, arguments.steps, streams, pool, graphs)
        stats = torch.cuda.memory_stats()
        snapshot = torch.cuda.memory._snapshot()
        name = f"random-{arguments.seed}-{number}"
        (arguments.folder / f"{name}.pickle").write_bytes(pickle.dumps(snapshot))
        facts = {
            "torch": torch.__version__,
            "capacity": total,
            "failures": failures,
            "fraction": arguments.fraction,
        }
        facts["stats"] = stats
        del pool, graphs
        (arguments.folder / f"{name}.json").write_text(json.dumps(facts))
    print(f"{arguments.programs} programs in {arguments.folder}")


if __name__ == "__main__":
    main()
