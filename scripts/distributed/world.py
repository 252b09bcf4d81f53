"""Runs one rank of thousands: measures time and host memory, and checks the GPU memory to the byte.

    python scripts/distributed/world.py [RANKSxLAYERS…]

Writes ../../measurements/world.md. `MEMFIT_COMMAND` names the command, `MEMFIT_PYTHON` the interpreter with
torch. The model has the shapes of Llama 3.1 70B, and is trained with FSDP2, mixed precision and activation
checkpointing. It is created on `meta`, so that it takes no host memory:

    memfit run --gpu h100:8 --world-size 4096 -- python scripts/distributed/world.py train 80
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, LENGTH = 8192, 64, 8, 28672, 128256, 8192
KEYS = WIDTH // HEADS * KEY_HEADS
LAYERS = 80
OVER_RANKS = [(ranks, LAYERS) for ranks in (64, 256, 1024, 4096)]
OVER_LAYERS = [(1024, layers) for layers in (20, 40, 160, 320)]
PAGE = Path(__file__).resolve().parents[2] / "measurements" / "world.md"


def train(layers: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, WIDTH + 2 * KEYS, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)
            self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
            self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            parts = self.qkv(rms_norm(x, (WIDTH,))).split([WIDTH, KEYS, KEYS], dim=-1)
            query, key, value = (
                part.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for part in parts
            )
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            normed = rms_norm(x, (WIDTH,))
            return x + self.down(silu(self.gate(normed)) * self.up(normed))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.words(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = Decoder()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (1, LENGTH + 1)).cuda()
    for _ in range(3):
        logits = model(tokens[:, :-1])
        cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


Matrices = list[tuple[int, int]]
ROOT: Matrices = [(VOCABULARY, WIDTH)] * 2
BLOCK: Matrices = [
    (WIDTH + 2 * KEYS, WIDTH),
    (WIDTH, WIDTH),
    (HIDDEN, WIDTH),
    (HIDDEN, WIDTH),
    (WIDTH, HIDDEN),
]


def share(rows: int, ranks: int) -> int:
    """Return the number of whole rows per rank."""
    return -(-rows // ranks)


def kept(ranks: int, layers: int) -> int:
    """Count the elements that rank 0 holds."""
    return sum(share(rows, ranks) * columns for rows, columns in ROOT + BLOCK * layers)


def gathered(ranks: int) -> int:
    """Count the elements that are whole at the peak, where the first block of the backward pass meets the
    root: every rank's share of both.
    """
    return sum(share(rows, ranks) * ranks * columns for rows, columns in ROOT + BLOCK)


def expected(ranks: int, layers: int) -> dict[str, int]:
    """Compute the bytes at the peak: parts in single precision and what is whole in 16 bits; the optimizer's
    two states (its counters of steps are on the host).
    """
    return {
        "parameters": 4 * kept(ranks, layers) + 2 * gathered(ranks),
        "optimizer": 8 * kept(ranks, layers),
    }


def run(ranks: int, layers: int) -> dict[str, Any]:
    command, python = os.environ.get("MEMFIT_COMMAND", "memfit"), os.environ.get("MEMFIT_PYTHON", "python")
    words = [command, "run", "--gpu", "h100:8", "--world-size", str(ranks), "--steps", "2", "--timeout", "0"]
    words += ["--format", "json", "--", python, __file__, "train", str(layers)]
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "wall": time.monotonic() - began,
        "processor": used.ru_utime + used.ru_stime,
        "host": used.ru_maxrss * 1024,
        "verdict": report["verdict"],
        "peak": report["peak"],
        "held": report["at_peak"]["by_category"],
        "torch": report["torch"],
    }


def table(found: dict[tuple[int, int], dict[str, Any]]) -> str:
    text = (
        "| ranks | layers | parameters | `memfit run`, wall time | CPU time | memory of the largest process | answer | peak GPU memory "
        "| parameters at the peak, bytes | expected | optimizer states, bytes | expected |\n"
        "|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|\n"
    )
    for (ranks, layers), row in found.items():
        count = sum(rows * columns for rows, columns in ROOT + BLOCK * layers)
        text += (
            f"| {ranks:,} | {layers} | {count / 1e9:.1f} billion | {row['wall']:.0f} s | {row['processor']:.0f} s "
            f"| {row['host'] / 2**30:.2f} GiB | {row['verdict']} | {row['peak']['device'] / 2**30:.2f} GiB "
        )
        for name, bytes_ in expected(ranks, layers).items():
            text += f"| {row['held'][name]:,} | {bytes_:,} "
        text += "|\n"
    return text


def page(found: dict[tuple[int, int], dict[str, Any]]) -> str:
    return (
        "# One rank of a job with thousands of ranks\n\n"
        "Written by `python scripts/distributed/world.py`. `memfit run --world-size` runs rank 0 of a job that trains a decoder with\n"
        f"the shapes of Llama 3.1 70B, on sequences of {LENGTH:,} tokens, with FSDP2 on virtual H100s, eight per machine. The bytes that\n"
        "this rank must hold at the peak follow from the shapes: its rows of each matrix in float32, with two optimizer states, and the\n"
        "gathered bfloat16 matrices of one block and of those outside the blocks. *Expected* is this calculation; memfit's figures must\n"
        f"equal it. {os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f}.\n\n"
        + table(found)
        + f"\nWith torch {', '.join(sorted({row['torch'] for row in found.values()}))}.\n"
    )


def main() -> int:
    asked = sys.argv[1:]
    if asked[:1] == ["train"]:
        train(int(asked[1]))
        return 0
    sizes = [tuple(map(int, each.split("x"))) for each in asked] or OVER_RANKS + OVER_LAYERS
    found = {(ranks, layers): run(ranks, layers) for ranks, layers in sizes}
    PAGE.write_text(page(found), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return int(
        any(
            row["held"][name] != bytes_
            for (ranks, layers), row in found.items()
            for name, bytes_ in expected(ranks, layers).items()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
