"""Measure what PyTorch does with the memory and the time of your GPU; needs this file, PyTorch, and minutes.

    python measure.py [-o ground-truth.json] [--only WORDS] [--workloads FOLDER]

Each case is a short training or inference in a process of its own. What PyTorch counted, what the driver saw
and how long steps took goes into one JSON file, with the names and versions of card, driver and libraries,
and nothing else of your machine. Nothing is sent anywhere. `--workloads` adds the cases of `cases.txt`, whose
scripts are in that folder of memfit's repository.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import datetime
import functools
import json
import os
import platform
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SCHEMA = "memfit.ground-truth/1"
STEPS = 8
CASE_SECONDS = 120  # A case that hangs must not stop the others.
HERE = Path(__file__).resolve().parent
Case = Callable[[], list[float]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under its function's name."""
    CASES[function.__name__] = function
    return function


# ------------------------------------------------------------------------------------------------- networks


class Attention(nn.Module):
    """A transformer's block with PyTorch's attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.project(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.fall(functional.gelu(self.rise(self.after(x))))


class Language(nn.Module):
    """A small decoder."""

    def __init__(
        self, layers: int = 6, width: int = 512, words: int = 32_000, recomputes: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Attention(width, 8) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.recomputes = recomputes

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(x)


def residual(width: int, stride: int) -> nn.Sequential:
    """Return two convolutions with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(width // stride, width, 3, stride, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


def convolutional() -> nn.Sequential:
    """Return an image classifier."""
    stem = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    stages = [residual(64, 1), residual(128, 2), residual(256, 2), residual(512, 2)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


# -------------------------------------------------------------------------------------------------- trainings


def timed(step: Callable[[], object], steps: int = STEPS) -> list[float]:
    """Call a function some times; return the milliseconds that the GPU took for each call."""
    times = []
    for _ in range(steps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times


def train(
    model: nn.Module,
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    precision: torch.dtype | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> list[float]:
    """Train some steps; return the milliseconds of each."""
    updates = optimizer(model.parameters(), lr=1e-3, **options)
    scaler = torch.amp.GradScaler(enabled=precision is torch.float16)

    def step() -> None:
        inputs, labels = batch()
        with torch.autocast("cuda", precision or torch.bfloat16, enabled=precision is not None):
            outputs = model(inputs)
            loss = functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())
        scaler.scale(loss).backward()
        scaler.step(updates)
        scaler.update()
        updates.zero_grad()

    return timed(step)


def pictures(samples: int = 32, size: int = 224) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(samples, 3, size, size, device="cuda")
    return images, torch.zeros(samples, dtype=torch.long, device="cuda")


def words(samples: int = 8, length: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.zeros(samples, length, dtype=torch.long, device="cuda")
    return tokens, tokens


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4096, 1024, device="cuda"), torch.zeros(4096, dtype=torch.long, device="cuda")


def ragged() -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    lengths = iter([512, 128, 384, 256, 500, 64, 448, 320] * STEPS)
    return lambda: words(8, next(lengths))


BF16, FP16 = torch.bfloat16, torch.float16
SGD = functools.partial(torch.optim.SGD, momentum=0.9)
CASES |= {
    "perceptron_fp32": lambda: train(
        nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda(), numbers
    ),
    "convolutional_fp32": lambda: train(convolutional().cuda(), pictures, optimizer=SGD),
    "convolutional_bf16": lambda: train(convolutional().cuda(), pictures, BF16, SGD),
    "convolutional_fp16_scaled": lambda: train(convolutional().cuda(), pictures, FP16, SGD),
    "language_fp32": lambda: train(Language().cuda(), words),
    "language_bf16": lambda: train(Language().cuda(), words, BF16),
    "language_bf16_weights": lambda: train(Language().to("cuda", BF16), words),
    "language_checkpointed": lambda: train(Language(recomputes=True).cuda(), words, BF16),
    "language_fused_optimizer": lambda: train(Language().cuda(), words, BF16, fused=True),
    "language_loop_optimizer": lambda: train(Language().cuda(), words, BF16, foreach=False),
    "language_ragged": lambda: train(Language().cuda(), ragged(), BF16),
    "language_compiled": lambda: train(torch.compile(Language(layers=2).cuda()), words, BF16),
}


@case
def convolutional_channels_last() -> list[float]:
    model = convolutional().cuda().to(memory_format=torch.channels_last)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = pictures()
        return images.to(memory_format=torch.channels_last), labels

    return train(model, batch, torch.bfloat16, torch.optim.SGD)


@case
def convolutional_benchmark() -> list[float]:
    torch.backends.cudnn.benchmark = True
    return train(convolutional().cuda(), pictures, optimizer=torch.optim.SGD)


@case
def language_full_attention_matrix() -> list[float]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return train(Language(layers=2).cuda(), words)


@case
def recurrent() -> list[float]:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10_000, 256), nn.Linear(512, 64)
            self.layers = nn.LSTM(256, 512, 2, batch_first=True)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(self.embed(tokens))[0])

    return train(Tagger().cuda(), lambda: words(32, 256))


@case
def volumes() -> list[float]:
    model = nn.Sequential(
        nn.Conv3d(1, 16, 3, 1, 1),
        nn.ReLU(),
        nn.Conv3d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()
    return train(
        model,
        lambda: (
            torch.randn(2, 1, 64, 128, 128, device="cuda"),
            torch.zeros(2, dtype=torch.long, device="cuda"),
        ),
    )


@case
def inference_of_images() -> list[float]:
    model = convolutional().cuda().eval()
    with torch.inference_mode():
        return timed(lambda: model(pictures(64)[0]))


@case
def graph_of_a_perceptron() -> list[float]:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
    inputs, graph = torch.randn(256, 1024, device="cuda"), torch.cuda.CUDAGraph()
    with torch.inference_mode():
        for _ in range(3):
            model(inputs)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            model(inputs)
    for _ in range(STEPS):
        graph.replay()
    torch.cuda.synchronize()
    return []


@case
def grows_until_memory_runs_out() -> list[float]:
    kept = []
    with contextlib.suppress(torch.OutOfMemoryError):
        # A mebibyte less than a multiple of two: rounding and segments both count.
        while True:
            kept.append(torch.empty(511 * 1024 * 1024, dtype=torch.uint8, device="cuda"))
    return []


# ------------------------------------------------------------------------------------------------ measurement


def counted(times: list[float]) -> dict[str, Any]:
    """Return what PyTorch and the driver count in this process now."""
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "requested": stats["requested_bytes.all.peak"],
        "allocations": stats["allocation.all.allocated"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "in_use": total - free,
        "process": of_this_process(),
        "reserved_at_end": stats["reserved_bytes.all.current"],
        "step_ms": round(statistics.median(times[2:]), 4) if len(times) > 4 else None,
    }


def measure(name: str, history: Path | None) -> dict[str, Any]:
    """Run a case, or a workload's command line, in this process."""
    if history:
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1_000_000)
        atexit.register(lambda: torch.cuda.memory._dump_snapshot(str(history)))
    if name in CASES:
        return counted(CASES[name]())
    script, *arguments = name.split()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    return counted([])


def smi(query: str, kind: str = "gpu") -> str | None:
    """Return values of the first GPU, or of the processes on it, from nvidia-smi; `None` without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", f"--query-{kind}={query}", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def of_this_process() -> int | None:
    """Return the bytes that the driver counts for this process, where it tells processes apart."""
    rows = [row.split(", ") for row in (smi("pid,used_memory", "compute-apps") or "").splitlines()]
    return next((int(used) * 2**20 for pid, used in rows if pid == str(os.getpid())), None)


def in_child(name: str, folder: Path, history: Path | None = None) -> dict[str, Any]:
    """Measure a case in a process of its own."""
    began = time.monotonic()
    own = Path(tempfile.mkdtemp(dir=folder))
    target, used = own / "case.json", smi("memory.used")
    command = [sys.executable, str(Path(__file__).resolve()), "--case", name, "-o", str(target)]
    if history:
        command += ["--history", str(history / (re.sub(r"[^\w.]+", "-", Path(name).name) + ".pickle"))]
    try:
        done = subprocess.run(
            command, cwd=own, capture_output=True, text=True, check=False, timeout=CASE_SECONDS
        )
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        error = "" if target.exists() else f"status {done.returncode}: {last[:200]}"
    except subprocess.TimeoutExpired:
        error = f"took more than {CASE_SECONDS} s"
    found = json.loads(target.read_text()) if not error else {"error": error}
    used_before = int(used) if used is not None and used.isdigit() else None
    return {"used_before_mib": used_before, **found, "seconds": round(time.monotonic() - began, 1)}


def surroundings() -> dict[str, Any]:
    """Return the card and the software, as a child process sees them."""
    card = torch.cuda.get_device_properties(0)
    return {
        "card": {
            "name": card.name,
            "capacity": torch.cuda.mem_get_info()[1],
            "capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count,
        },
        "software": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF")
            or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
            or "",
        },
    }


def workloads(folder: Path) -> list[str]:
    """Return the command lines of cases.txt."""
    lines = (line.strip().removeprefix("~ ") for line in (HERE / "cases.txt").read_text().splitlines())
    return [f"{folder.resolve()}/{line}" for line in lines if line and not line.startswith("#")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("ground-truth.json"))
    parser.add_argument("--only", default="", help="cases whose names hold one of these words")
    parser.add_argument("--workloads", type=Path, help="the folder workloads/ of memfit's repository")
    parser.add_argument(
        "--jobs", type=int, default=1, help="cases at a time; with several, steps are not timed"
    )
    parser.add_argument("--history", type=Path, help="a folder for PyTorch's memory history of each case")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        found = surroundings() if given.case == "surroundings" else measure(given.case, given.history)
        given.output.write_text(json.dumps(found))
        return
    output, words = given.output.resolve(), given.only.split()
    names = [*CASES, *(workloads(given.workloads) if given.workloads else [])]
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "date": str(datetime.date.today()),
        "driver": smi("driver_version"),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        around = in_child("surroundings", folder)
        if "error" in around:
            sys.exit(f"PyTorch cannot use a GPU here: {around['error']}")
        result |= {key: around[key] for key in ("card", "software")} | {"cases": {}}
        names = [name for name in names if not words or any(word in name for word in words)]
        history = given.history.resolve() if given.history else None
        with ThreadPoolExecutor(given.jobs) as pool:
            for name, found in zip(
                names, pool.map(lambda each: in_child(each, folder, history), names), strict=True
            ):
                # A path would tell where it ran.
                short = name.removeprefix(f"{given.workloads.resolve()}/") if given.workloads else name
                if given.jobs > 1:
                    found |= {"step_ms": None, "used_before_mib": None}
                result["cases"][short] = found
                allocated = f"{found.get('allocated', 0) / 2**20:,.1f} MiB allocated, {found['seconds']} s"
                print(f"{short}: {found.get('error') or allocated}", flush=True)
                output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {output.name}")


if __name__ == "__main__":
    main()
