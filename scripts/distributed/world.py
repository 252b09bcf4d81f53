"""Runs one rank of hundreds on this machine: measures the time, and checks its memory to the byte.

    python scripts/distributed/world.py [RANKS…]

Writes ../../measurements/world.md. `MEMFIT_COMMAND` names the command, `MEMFIT_PYTHON` the interpreter with
torch. The model is a decoder of ten billion parameters, trained with FSDP2, mixed precision and activation
checkpointing. It is created on `meta`, so that it takes no host memory:

    memfit run --gpu h100:8 --world-size 512 -- python scripts/distributed/world.py train
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, HIDDEN, VOCABULARY, LENGTH, BATCH = 4096, 48, 32, 11008, 32000, 4096, 1
PAGE = Path(__file__).resolve().parents[2] / "measurements" / "world.md"


def train() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)
            self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
            self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            parts = self.qkv(rms_norm(x, (WIDTH,))).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            normed = rms_norm(x, (WIDTH,))
            return x + self.down(silu(self.gate(normed)) * self.up(normed))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
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
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1)).cuda()
    for _ in range(3):
        logits = model(tokens[:, :-1])
        cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


Matrices = list[tuple[int, int]]
ROOT: Matrices = [(VOCABULARY, WIDTH)] * 2
BLOCK: Matrices = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)]


def share(rows: int, ranks: int) -> int:
    """Return the number of whole rows per rank."""
    return -(-rows // ranks)


def kept(ranks: int) -> int:
    """Elements that rank 0 holds."""
    return sum(share(rows, ranks) * columns for rows, columns in ROOT + BLOCK * LAYERS)


def gathered(ranks: int) -> int:
    """Elements that are whole at the peak, where the first block of the backward pass meets the root: every
    rank's share of both.
    """
    return sum(share(rows, ranks) * ranks * columns for rows, columns in ROOT + BLOCK)


def expected(ranks: int) -> dict[str, int]:
    """Parts in single precision, what is whole in 16 bits; the optimizer's two states, and its counters of
    steps on the host.
    """
    return {"parameters": 4 * kept(ranks) + 2 * gathered(ranks), "optimizer": 8 * kept(ranks)}


def run(ranks: int) -> dict[str, Any]:
    command, python = os.environ.get("MEMFIT_COMMAND", "memfit"), os.environ.get("MEMFIT_PYTHON", "python")
    words = [command, "run", "--gpu", "h100:8", "--world-size", str(ranks), "--steps", "2", "--timeout", "0"]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*words, "--format", "json", "--", python, __file__, "train"], stdout=subprocess.PIPE, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)
    return {
        "wall": time.monotonic() - began,
        "processor": sum(after[:2]) - sum(before[:2]),
        "verdict": report["verdict"],
        "peak": report["peak"],
        "held": report["at_peak"]["by_category"],
        "torch": report["torch"],
    }


def page(found: dict[int, dict[str, Any]]) -> str:
    count = sum(rows * columns for rows, columns in ROOT + BLOCK * LAYERS)
    text = (
        "# One rank of a job with hundreds of ranks\n\n"
        f"Written by `python scripts/distributed/world.py`. `memfit run --world-size` runs rank 0 of a job that trains a decoder of {count:,}\n"
        "parameters with FSDP2 on virtual H100s, eight per machine. The bytes that this rank must hold at the peak follow from the\n"
        "shapes: its rows of each matrix in float32, with two optimizer states, and the gathered bfloat16 matrices of one block and of those\n"
        "outside the blocks. *Expected* is this calculation; memfit's figures must equal it. "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f}.\n\n"
    )
    text += "| ranks | `memfit run`, wall time | CPU time | peak GPU memory | parameters at the peak, bytes | expected | optimizer states, bytes | expected |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for ranks, row in found.items():
        text += f"| {ranks} | {row['wall']:.0f} s | {row['processor']:.0f} s | {row['peak']['device'] / 2**30:.2f} GiB "
        for name, bytes_ in expected(ranks).items():
            text += f"| {row['held'][name]:,} | {bytes_:,} "
        text += "|\n"
    return text + f"\nWith torch {', '.join(sorted({row['torch'] for row in found.values()}))}.\n"


def main() -> int:
    asked = sys.argv[1:]
    if asked == ["train"]:
        train()
        return 0
    found = {ranks: run(ranks) for ranks in map(int, asked or ["512", "1024"])}
    PAGE.write_text(page(found), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return int(
        any(
            row["held"][name] != bytes_
            for ranks, row in found.items()
            for name, bytes_ in expected(ranks).items()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
