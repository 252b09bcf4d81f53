"""Measures the GPU for `memfit calibrate`: reports raw timings and sizes; the parent process evaluates them.

Each fact is one line of JSON on standard output. After a stage it waits for a line on standard input, while
the parent process inspects the GPU from outside.

  python gpu.py            one GPU: memory outside the allocator, rates, bandwidths, launches
  python gpu.py --ranks    one rank of several: communicators
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

MIB = 1 << 20
# Work is repeated to take about this long, so that launches do not count.
SAMPLE_MS = 20.0
# A matrix product that takes longer is large enough.
LARGE_MS = 100.0
SAMPLES = 7
# Number of samples for work that takes a large part of a second.
SAMPLES_OF_LONG_WORK = 3


def report(**fact: object) -> None:
    print(json.dumps(fact), flush=True)


def stage(name: str) -> None:
    """Wait until the parent process has inspected the GPU."""
    torch.cuda.synchronize()
    report(kind="stage", name=name, reserved=torch.cuda.memory_reserved())
    sys.stdin.readline()


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Report a measurement that failed, and continue."""
    try:
        yield
    except Exception as error:  # any error: the catalogue's value is kept
        report(
            kind="not_measured", what=what, why=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        )
    torch.cuda.empty_cache()


def elapsed(work: Callable[[], object], times: int) -> float:
    """Return the GPU time of `times` calls in milliseconds."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def report_samples(name: str, amount: float, work: Callable[[], object]) -> None:
    """Report the nanoseconds per call of `work`, which processes `amount` of something."""
    elapsed(work, 2)
    once = elapsed(work, 1)
    times = max(1, min(200, round(SAMPLE_MS / max(once, 1e-3))))
    samples = SAMPLES if once < 2 * LARGE_MS else SAMPLES_OF_LONG_WORK
    took = [elapsed(work, times) / times * 1e6 for _ in range(samples)]
    report(kind="sample", name=name, amount=amount, nanoseconds=took)


def report_gpu() -> None:
    gpu = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    report(
        kind="gpu",
        name=gpu.name,
        memory=gpu.total_memory,
        capability=[gpu.major, gpu.minor],
        uuid=str(getattr(gpu, "uuid", "")),
        free=free,
        total=total,
        count=torch.cuda.device_count(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
    )


# --- memory outside the allocator


class Block(nn.Module):
    """A small model with the common layers of a training run."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))


def train(dtype: torch.dtype) -> None:
    """Train two steps, in half precision where it makes a difference."""
    model = Block().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        images = torch.randn(8, 3, 64, 64, device="cuda")
        with torch.autocast("cuda", dtype=dtype):
            loss = functional.cross_entropy(model(images), torch.randint(10, (8,), device="cuda"))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def load_more_libraries() -> None:
    """Load the libraries of other scripts: other types, other layers, sorting and indexing."""
    x = torch.randn(64, 64, device="cuda")
    rows = torch.randint(64, (64,), device="cuda")
    _ = x.sort().values.cumsum(0).softmax(-1).topk(4)
    _ = x[rows].index_add(0, rows, x).std()
    _ = torch.where(x > 0, x.exp(), x.tanh()).masked_fill(x > 1, 0).unique()
    for layer in (nn.Embedding(64, 64), nn.GroupNorm(4, 64), nn.LSTM(64, 64), nn.ConvTranspose2d(64, 8, 3)):
        layer = layer.cuda()
        made = {nn.Embedding: rows, nn.ConvTranspose2d: x.view(1, 64, 8, 8)}.get(type(layer), x)
        out = layer(made)
        (out[0] if isinstance(out, tuple) else out).sum().backward()


# --- rates
# -----------------------------------------------------------------------------------------------------------


def measure_product(name: str, make: Callable[[int], Callable[[], object]]) -> None:
    """Measure products of two sizes, large enough to keep every multiprocessor busy."""
    with attempt(f"rate of {name}"):
        size = 4096
        work = make(size)
        elapsed(work, 1)
        if elapsed(work, 1) < LARGE_MS:
            size = 8192
        del work
        for each in (size, size * 3 // 4):
            report_samples(name, 2.0 * each**3, make(each))


def matrix_product(dtype: torch.dtype) -> Callable[[int], Callable[[], object]]:
    def make(size: int) -> Callable[[], object]:
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)

    return make


def int8_product(size: int) -> Callable[[], object]:
    a, b = (torch.randint(-9, 9, (size, size), device="cuda", dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(a, b.t())


def fp8_product(size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def measure_rates(capability: tuple[int, int]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    measure_product("fp64", matrix_product(torch.float64))
    measure_product("fp32", matrix_product(torch.float32))
    measure_product("fp16", matrix_product(torch.float16))
    if capability >= (8, 0):
        measure_product("bf16", matrix_product(torch.bfloat16))
        torch.backends.cuda.matmul.allow_tf32 = True
        measure_product("tf32", matrix_product(torch.float32))
        torch.backends.cuda.matmul.allow_tf32 = False
    if capability >= (7, 2):
        measure_product("int8", int8_product)
    if capability >= (8, 9):
        measure_product("fp8", fp8_product)


# --- bandwidths and launches
# -----------------------------------------------------------------------------------------


def memory_bandwidth(free: int) -> None:
    with attempt("memory bandwidth"):
        size = min(1024 * MIB, free // 8)
        source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        report_samples("memory", 2.0 * size, lambda: target.copy_(source))


def link_bandwidth(name: str, pinned: bool, size: int) -> None:
    with attempt(f"link, {name}"):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        report_samples(f"to_card_{name}", size, lambda: device.copy_(host, non_blocking=True))
        report_samples(f"to_host_{name}", size, lambda: host.copy_(device, non_blocking=True))


def launch_time(free: int) -> None:
    """Measure short kernels that were all queued before the first of them began."""
    with attempt("launches"):
        size = min(1024 * MIB, free // 8)
        source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        small = torch.zeros(8, device="cuda")
        once = max(elapsed(lambda: target.copy_(source), 3) / 3, 1e-3)
        many, took = 500, []
        for _ in range(SAMPLES):
            for _ in range(max(1, round(60 / once))):
                target.copy_(source)
            took.append(elapsed(lambda: small.add_(1), many) / many * 1e6)
        report(kind="sample", name="launch", amount=1.0, nanoseconds=took)


# --- communicators
# ---------------------------------------------------------------------------------------------------


def measure_communicators() -> None:
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    tensor = torch.ones(64 * MIB, device="cuda")
    torch.mm(tensor[: 1 << 20].view(1024, 1024), tensor[: 1 << 20].view(1024, 1024))
    stage("before")
    dist.init_process_group("nccl", rank=rank, world_size=size)
    dist.all_reduce(tensor)
    stage("first")
    parts = list(tensor.chunk(size))
    dist.all_gather_into_tensor(tensor, parts[rank].clone())
    dist.reduce_scatter_tensor(torch.empty_like(parts[rank]), tensor)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    dist.broadcast(tensor, 0)
    stage("all")
    # Bytes over each GPU's link in a ring.
    report_samples("peers", 2.0 * (size - 1) / size * tensor.nbytes, lambda: dist.all_reduce(tensor))
    dist.barrier()
    dist.destroy_process_group()


def measure_one_gpu() -> None:
    report(kind="stage", name="before", reserved=0)
    sys.stdin.readline()
    torch.empty(1, device="cuda")
    stage("context")
    report_gpu()
    torch.mm(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")).relu_().sum().item()
    stage("basic")
    capability = torch.cuda.get_device_capability()
    train(torch.bfloat16 if capability >= (8, 0) else torch.float16)
    stage("training")
    with attempt("libraries beyond a training step"):
        load_more_libraries()
    free = torch.cuda.mem_get_info()[0]
    steps: Iterable[Callable[[], None]] = (
        lambda: measure_rates(capability),
        lambda: memory_bandwidth(free),
        lambda: link_bandwidth("pinned", True, min(256 * MIB, free // 8)),
        lambda: link_bandwidth("pageable", False, min(64 * MIB, free // 8)),
        lambda: launch_time(free),
    )
    for step in steps:
        step()
    stage("everything")
    report(kind="end")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    measure_communicators() if "--ranks" in sys.argv else measure_one_gpu()
