"""Compares PyTorch's accounting with the virtual GPU's, in random programs under every setting of its
allocators.

    memfit run --gpu t4:2 --memory 1GiB --steps 0 --timeout 0 --show-output -- \\
        python scripts/replay/agreement.py [--programs N] [--steps N] [--seed N] [--record] [SETTING…]

Each program allocates and frees on two GPUs and several streams, records events and streams, uses memory
pools of its own, captures graphs, fills the GPU, empties the cache, and allocates pinned memory. Every few
steps PyTorch's snapshot and statistics are compared with the allocations of the virtual device. Setting, seed
and number determine a program. `--record` resumes where it stopped, with a few programs of each setting, and
keeps their results in `measurements/agreement.json` and `measurements/agreement.md`; with `--minutes N` it
starts nothing after N minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from random_programs import capture, size

MIB = 1 << 20
RECORD = Path(__file__).parent.parent.parent / "measurements" / "agreement.json"
# As many programs of a setting are recorded at a time.
TURN = 50
EXPANDABLE = "expandable_segments:True"
ASYNC = "backend:cudaMallocAsync"
SETTINGS = [
    "",
    EXPANDABLE,
    "max_split_size_mb:64",
    "max_split_size_mb:32,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,64:4,256:2,>:1]",
    "large_segment_size_mb:64",
    "per_process_memory_fraction:0.3",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.3",
    f"{EXPANDABLE},expandable_segments_handle_type:posix_fd",
    f"{EXPANDABLE},max_split_size_mb:64,large_segment_size_mb:32",
    f"{EXPANDABLE},garbage_collection_threshold:0.6,per_process_memory_fraction:0.4",
    "release_lock_on_cudamalloc:True",
    "graph_capture_record_stream_reuse:True",
    f"{EXPANDABLE},graph_capture_record_stream_reuse:True",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:4",
    "pinned_use_background_threads:True",
    "pinned_reserve_segment_size_mb:32",
    "max_split_size_mb:64,roundup_power2_divisions:8,garbage_collection_threshold:0.5,per_process_memory_fraction:0.6",
    ASYNC,
]


class Books(ctypes.Structure):
    """The device's record of the memory it gave this process."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "allocations",
            "allocated",
            "mapped",
            "physical",
            "pool_reserved",
            "pool_used",
            "booked",
            "pinned",
        )
    ]


def books(card: int) -> Books:
    found = Books()
    if not ctypes.CDLL(None).memfit_vgpu_books(card, ctypes.byref(found)):
        raise RuntimeError("the device keeps no books of this card")
    return found


class ContradictionError(Exception):
    """PyTorch's own figures contradict each other."""


def agree(mine: Any, theirs: Any, what: str) -> None:
    if mine != theirs:
        raise AssertionError(f"{what}: {mine:,} and {theirs:,}")


class Program:
    """A random program and the memory that it holds."""

    def __init__(self, rng: random.Random, setting: str) -> None:
        self.rng, self.native = rng, setting != ASYNC
        aside = [word.partition(":")[2] for word in setting.split(",") if word.startswith("pinned_reserve")]
        self.aside = sum(int(megabytes) * MIB for megabytes in aside)
        self.cards = range(torch.cuda.device_count())
        self.live: list[list[torch.Tensor]] = [[] for _ in self.cards]
        self.pinned: list[torch.Tensor] = []
        self.streams = [[torch.cuda.Stream(card) for _ in range(3)] for card in self.cards]
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.pool = torch.cuda.MemPool() if self.native and rng.random() < 0.5 else None
        self.captures = self.native and rng.random() < 0.4
        self.failures = self.checks = 0
        # The GPU's memory beyond PyTorch's: contexts and libraries, at their upper bound.
        self.outside = [self.lacking(card) - self.reserved(card) for card in self.cards]

    def lacking(self, card: int) -> int:
        free, total = torch.cuda.mem_get_info(card)
        return total - free

    def reserved(self, card: int) -> int:
        return torch.cuda.memory_stats(card).get("reserved_bytes.all.current", 0)

    def allocate(self, card: int, stream: Any, count: int = 1) -> None:
        try:
            with torch.cuda.device(card), torch.cuda.stream(stream):
                for _ in range(count):
                    self.live[card].append(
                        torch.empty(size(self.rng), dtype=torch.uint8, device=f"cuda:{card}")
                    )
        except torch.OutOfMemoryError:
            self.failures += 1
            del self.live[card][: len(self.live[card]) // 2]

    def step(self) -> None:
        rng, card = self.rng, self.rng.randrange(len(self.cards))
        live, streams, action = self.live[card], self.streams[card], self.rng.random()
        if action < 0.5 or not live:
            own = torch.cuda.default_stream(card) if rng.random() < 0.8 else streams[0]
            self.allocate(card, own)
        elif action < 0.86:
            live.pop(rng.randrange(len(live)))
        elif action < 0.90:
            with torch.cuda.stream(streams[1]):
                used = rng.choice(live)
                used.fill_(1)
                used.record_stream(streams[1])
        elif action < 0.92:
            event = streams[1].record_event()
            streams[2].wait_event(event)
            if rng.random() < 0.5:
                event.synchronize()
        elif action < 0.94:
            self.page_locked()
        elif action < 0.955 and self.pool is not None:
            with torch.cuda.device(0), torch.cuda.use_mem_pool(self.pool):
                self.allocate(0, torch.cuda.current_stream(0), count=3)
        elif action < 0.965 and self.captures:
            with torch.cuda.device(0):
                try:
                    self.live[0] += capture(rng, self.graphs)
                except torch.OutOfMemoryError:
                    self.failures += 1
        elif action < 0.98:
            torch.cuda.synchronize(card)
        elif action < 0.985:
            with torch.cuda.device(card):
                torch.cuda.empty_cache()
        elif action < 0.99:
            # Until the card is full.
            self.allocate(card, torch.cuda.default_stream(card), count=rng.randrange(40))
        else:
            live.clear()

    def page_locked(self) -> None:
        if len(self.pinned) > 4 or (self.pinned and self.rng.random() < 0.4):
            self.pinned.pop(self.rng.randrange(len(self.pinned)))
        else:
            self.pinned.append(
                torch.empty(self.rng.randrange(1, 4 * MIB), dtype=torch.uint8, pin_memory=True)
            )

    def check(self) -> None:
        self.checks += 1
        segments = torch.cuda.memory_snapshot() if self.native else []
        for card in self.cards:
            found, stats = books(card), torch.cuda.memory_stats(card)
            reserved = stats.get("reserved_bytes.all.current", 0)
            agree(
                found.allocated + found.physical + found.pool_reserved,
                found.booked,
                "the device's books and the ledger's",
            )
            agree(self.lacking(card) - self.outside[card], found.booked, "what the card lacks")
            if self.native:
                self.check_native([each for each in segments if each["device"] == card], found, stats)
            else:
                agree(reserved, found.pool_reserved, "reserved, and what the pool has")
                if not stats.get("allocated_bytes.all.current", 0) <= found.pool_used <= reserved:
                    raise AssertionError(
                        "what is used of the pool is less than allocated, or more than reserved"
                    )
        self.check_pinned()

    def check_native(self, segments: list[dict[str, Any]], found: Books, stats: dict[str, int]) -> None:
        plain = [each["total_size"] for each in segments if not each["is_expandable"]]
        grown = [each["total_size"] for each in segments if each["is_expandable"]]
        # First PyTorch against itself: its snapshot can lack a pool of a graph's that its statistics still
        # have.
        reserved = stats["reserved_bytes.all.current"]
        if self.captures and sum(plain) + sum(grown) < reserved == found.allocated + found.mapped:
            missing = reserved - sum(plain) - sum(grown)
            raise ContradictionError(
                f"the snapshot lacks {missing:,} bytes of what PyTorch's own statistics and the device have"
            )
        agree(sum(plain), found.allocated, "segments, and what cudaMalloc gave")
        agree(len(plain), found.allocations, "the number of segments, and of allocations")
        agree(sum(grown), found.mapped, "expandable segments, and what is mapped")
        agree(found.physical, found.mapped, "physical memory, and what is mapped")
        agree(reserved, sum(plain) + sum(grown), "reserved, and the segments")
        agree(
            stats["num_device_alloc"] - stats["num_device_free"] >= 0, True, "no more frees than allocations"
        )
        state = {"active_allocated": 0, "active_pending_free": 0, "inactive": 0}
        end = 0
        for segment in sorted(segments, key=lambda each: each["address"]):
            if segment["address"] < end:
                raise AssertionError("two segments overlap")
            end = segment["address"] + segment["total_size"]
            agree(
                sum(block["size"] for block in segment["blocks"]),
                segment["total_size"],
                "blocks, and their segment",
            )
            for block in segment["blocks"]:
                state[block["state"]] += block["size"]
                if block["state"] != "inactive" and block["requested_size"] > block["size"]:
                    raise AssertionError("a block is smaller than what was asked for")
        agree(stats["allocated_bytes.all.current"], state["active_allocated"], "allocated, and the blocks")
        held = state["active_allocated"] + state["active_pending_free"]
        agree(stats["active_bytes.all.current"], held, "active, and the blocks")

    def check_pinned(self) -> None:
        stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
        if "allocated_bytes.current" in stats:
            # Of memory reserved for small requests, only the requested part counts as allocated.
            beyond = books(0).pinned - stats["allocated_bytes.current"]
            if not 0 <= beyond <= self.aside:
                raise AssertionError(f"page-locked memory: {beyond:,} bytes more than PyTorch has")

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.step()
            if number % 8 == 7:
                self.check()
        self.check()
        for live in self.live:
            live.clear()
        self.graphs.clear()
        self.pinned.clear()
        self.pool = None
        torch.cuda.synchronize()
        self.check()


def run(setting: str, number: int, arguments: argparse.Namespace) -> Program:
    program = Program(random.Random(f"{setting}/{arguments.seed}/{number}"), setting)
    program.run(arguments.steps)
    torch.cuda.empty_cache()
    return program


def all_of(setting: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The programs of a setting that were asked for, in a process of its own."""
    # The backend is chosen when torch is imported; the rest can be set until CUDA is first used.
    if setting and setting != ASYNC:
        try:
            torch.cuda.memory._set_allocator_settings(setting)
        except (RuntimeError, ValueError) as error:
            return {"skipped": str(error).splitlines()[0]}
    # Whatever a card has from the start must be there before programs are held to account.
    for card in range(torch.cuda.device_count()):
        torch.empty(1, device=f"cuda:{card}").fill_(1)
    programs = checks = failures = 0
    for number in range(arguments.first, arguments.first + arguments.programs):
        try:
            program = run(setting, number, arguments)
        except Exception as error:
            if isinstance(error, ContradictionError) or "INTERNAL ASSERT FAILED" in str(error):
                # PyTorch's allocator is in a state that it did not expect, and cannot be used further in this
                # process.
                found = {"programs": programs + 1, "checks": checks, "out_of_memory": failures}
                return {**found, "asserted": 1, "assertion": f"program {number}: {error}".splitlines()[0]}
            traceback.print_exc()
            return {"failed": f"program {number}: {type(error).__name__}: {error}"}
        programs, checks, failures = programs + 1, checks + program.checks, failures + program.failures
    return {"programs": programs, "checks": checks, "out_of_memory": failures}


def in_child(setting: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Forks before CUDA is used, so that torch is imported once."""
    if setting == ASYNC and os.environ.get("PYTORCH_CUDA_ALLOC_CONF") != ASYNC:
        command = [
            sys.executable,
            __file__,
            ASYNC,
            f"--first={arguments.first}",
            f"--programs={arguments.programs}",
            f"--steps={arguments.steps}",
        ]
        done = subprocess.run(
            [*command, f"--seed={arguments.seed}"],
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ASYNC},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        return json.loads(lines[-1])[ASYNC] if lines else {"failed": f"exit status {done.returncode}"}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as file:
            json.dump(all_of(setting, arguments), file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": f"the process ended with status {status}"}


def record(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Resume where the last recording stopped, and keep the results."""
    began = time.monotonic()
    kept = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    for end in range(TURN, arguments.programs + TURN, TURN):
        for setting in arguments.settings:
            so_far = kept.setdefault(setting, {"torch": torch.__version__, "steps": arguments.steps})
            arguments.first = so_far.get("programs", 0)
            late = arguments.minutes and time.monotonic() - began > 60 * arguments.minutes
            if late or arguments.first >= end or "failed" in so_far or "skipped" in so_far:
                continue
            asked, arguments.programs = arguments.programs, min(end, arguments.programs) - arguments.first
            outcome = in_child(setting, arguments)
            arguments.programs = asked
            for name, value in outcome.items():
                # A turn that PyTorch ended early is taken up again behind the program that it ended with.
                so_far[name] = so_far.get(name, 0) + value if isinstance(value, int) else value
            RECORD.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
            RECORD.with_suffix(".md").write_text(page(kept), "utf-8")
    return kept


def page(kept: dict[str, dict[str, Any]]) -> str:
    """Format the records as a page."""
    total = sum(each.get("programs", 0) for each in kept.values())
    failed = sum("failed" in each for each in kept.values())
    text = (
        "# PyTorch's memory accounting compared with the virtual GPU's\n\n"
        "Written by `scripts/replay/agreement.py --record`. Random programs allocate and free memory on two virtual GPUs: several\n"
        "streams, memory pools, CUDA graphs, pinned memory, a full GPU, `empty_cache`. At each check, PyTorch's snapshot and statistics\n"
        "are compared with the allocations of the virtual device: every byte that one counts, the other must count too.\n\n"
    )
    text += f"{total:,} programs: "
    text += f"the two differ with {failed} settings.\n\n" if failed else "the two agree at every check.\n\n"
    text += "| allocator setting | torch | programs | checks | out-of-memory errors | remarks |\n|---|---|---|---|---|---|\n"
    for setting, each in kept.items():
        said = [each[name] for name in ("failed", "skipped") if name in each]
        if each.get("asserted"):
            said.append(
                f"{each['asserted']} programs ended by a contradiction in PyTorch itself, the last: {each['assertion']}"
            )
        figures = [f"{each.get(name, 0):,}" for name in ("programs", "checks", "out_of_memory")]
        text += f"| {f'`{setting}`' if setting else 'none'} | {each['torch']} | {' | '.join(figures)} | {'; '.join(said)} |\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="SETTING", default=SETTINGS)
    parser.add_argument("--programs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--record", action="store_true", help="resume where the last recording stopped")
    parser.add_argument("--minutes", type=float, help="with --record, start nothing after this time")
    parser.add_argument("--answer", type=Path, help="write the result of each setting to this file, as JSON")
    arguments = parser.parse_args()
    # Empty graphs, and the old name of the call that sets the allocator.
    warnings.simplefilter("ignore")
    outcomes = record(arguments) if arguments.record else {}
    for setting in [] if arguments.record else arguments.settings:
        outcomes[setting] = in_child(setting, arguments)
        print(f"{setting or 'default':100} {outcomes[setting]}", file=sys.stderr, flush=True)
    print(json.dumps(outcomes))
    if arguments.answer:
        arguments.answer.write_text(json.dumps(outcomes), encoding="utf-8")
    return int(any("failed" in outcome for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
