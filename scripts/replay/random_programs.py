"""Random programs for PyTorch's real allocator, each with its snapshot and its statistics.

    memfit run --gpu rtx-3060 --steps 0 --no-prove -- python scripts/replay/random_programs.py \\
        FOLDER [--programs N] [--seed N]

Runs on a virtual card or on a real one. Each program starts from an empty cache and ends with a snapshot of
its whole trace; `FOLDER` can then be given to the tests of memfit-allocator, as MEMFIT_TEST_SNAPSHOTS. The
settings are those of PYTORCH_ALLOC_CONF (PYTORCH_CUDA_ALLOC_CONF before 2.9); with `--each-setting` they are
all that `agreement.py` lists and this release knows, each in a process of its own that is forked before CUDA
is used. `differential.py` drives it so.
"""

import argparse
import json
import os
import pickle
import random
from pathlib import Path

import torch

MIB = 1 << 20
# Before, a trace does not tell in which pool a block was: programs with pools and captures cannot be followed
# to the byte.
EVENTS_NAME_POOLS = (2, 12)
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
            try:
                live += capture(rng, graphs)
            except torch.OutOfMemoryError:
                failures += 1
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


def release() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def record(arguments: argparse.Namespace, setting: str, name: str, place: int = 0) -> None:
    """Run the programs of a setting, and write the snapshot of each."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    if arguments.fraction:
        torch.cuda.set_per_process_memory_fraction(arguments.fraction)
    total = torch.cuda.mem_get_info()[1]
    for number in range(arguments.first, arguments.first + arguments.programs):
        rng = random.Random(arguments.seed * 1_000_003 + place * 10_007 + number)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(enabled="all", context=None)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        with_pool, with_graphs = arguments.pool, arguments.graphs
        if arguments.each_setting and release() >= EVENTS_NAME_POOLS:
            kind = (number + place) % 3
            with_pool, with_graphs = kind == 1, kind == 2
        pool = torch.cuda.MemPool() if with_pool else None
        graphs = [] if with_graphs else None
        failures = program(rng, arguments.steps, streams, pool, graphs)
        stats = torch.cuda.memory_stats()
        snapshot = torch.cuda.memory._snapshot()
        file = arguments.folder / f"{name}-{arguments.seed}-{number}.pickle"
        file.write_bytes(pickle.dumps(snapshot))
        facts = {
            "torch": torch.__version__,
            "capacity": total,
            "failures": failures,
            "fraction": arguments.fraction,
            "setting": setting,
            "stats": stats,
        }
        del pool, graphs
        file.with_suffix(".json").write_text(json.dumps(facts))


def each_setting(arguments: argparse.Namespace) -> None:
    """All settings that move memory about on the card, in a process each, so that torch is imported once."""
    from agreement import ASYNC, SETTINGS

    for place, setting in enumerate(SETTINGS):
        # Another allocator of its own keeps no trace.
        if setting == ASYNC:
            continue
        name = f"setting-{place:02}"
        child = os.fork()
        if child == 0:
            try:
                if setting:
                    torch.cuda.memory._set_allocator_settings(setting)
                record(arguments, setting, name, place)
            except Exception as error:
                not_run(arguments.folder, name, setting, str(error))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            not_run(arguments.folder, name, setting, f"the process ended with status {status}")


def not_run(folder: Path, name: str, setting: str, reason: str) -> None:
    """Leaves the reason why a setting's programs did not all run."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    facts = {
        "torch": torch.__version__,
        "setting": setting,
        "reason": lines[0] if lines else "no reason given",
    }
    (folder / f"{name}.not-run").write_text(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fraction", type=float)
    parser.add_argument("--pool", action="store_true", help="some allocations from a pool of their own")
    parser.add_argument("--graphs", action="store_true", help="some allocations while a graph is captured")
    parser.add_argument(
        "--each-setting", action="store_true", help="all settings in turn, pools and graphs too"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.each_setting:
        each_setting(arguments)
    else:
        record(arguments, "", "random")
    print(f"{arguments.programs} programs in {arguments.folder}")


if __name__ == "__main__":
    main()
