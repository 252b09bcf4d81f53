"""A training whose last rank is killed once; started by torchrun in `test_elastic.py`.

  torchrun … elastic_training.py FOLDER DEGREES WHERE DROPOUT

It trains eight batches and saves after every second step. In the first attempt, the last rank kills itself at
`WHERE`: `step` (between two collectives of the fourth step), `between` (after it), `shards` (the last rank
has not written its part of the second checkpoint), `rename` (the first rank dies with all parts written), or
`never`. Rank 0 writes what came out to `FOLDER/result.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import memfit
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

BATCHES = 8
SAVE_EVERY = 2
# The step in which, or after which, the process is killed.
FATAL = 4


class Block(nn.Module):
    """An MLP with a residual connection."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(functional.gelu(self.up(x))))


class Blocks(nn.Module):
    """Equal blocks between an embedding and a head."""

    def __init__(self, dropout: float, width: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(3))
        self.head = nn.Linear(width, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    tokens, labels = batch
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = torch.randint(0, 16, (BATCHES, 2, 6, 5), generator=generator)
    return [(tokens, labels) for tokens, labels in made]


def attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str, model: nn.Module, step: memfit.Step) -> None:
    """Let this process kill itself in its first attempt."""
    if attempt() > 0:
        return
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    fatal = FATAL - 1 if where == "step" else FATAL
    if where == "step" and rank == last:
        inner = [each for each in model.modules() if isinstance(each, Block)][1]
        inner.register_forward_hook(lambda *_: die() if step.steps == fatal else None)
    elif where == "shards" and rank == last:
        from torch.distributed.checkpoint import FileSystemWriter

        write = FileSystemWriter.write_data
        FileSystemWriter.write_data = lambda *some, **more: (
            die() if step.steps == fatal else write(*some, **more)
        )
    elif where == "rename" and rank == 0:
        rename = Path.rename
        Path.rename = lambda path, name: die() if step.steps == fatal else rename(path, name)


def main() -> None:
    warnings.simplefilter("ignore")
    folder, degrees, where = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    torch.manual_seed(7)
    model = Blocks(float(sys.argv[4])).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, BATCHES)
    step = memfit.Step(
        model, optimizer, loss, plan={"parallel": degrees}, scheduler=schedule, clip_grad_norm=1.0
    )
    resumed = memfit.checkpoints.load(folder / "checkpoints", step)
    start = resumed["batches"] if resumed else 0
    arm(where, model, step)
    losses = []
    is_last = dist.get_rank() == dist.get_world_size() - 1
    for index, batch in enumerate(batches()[start:], start):
        losses.append(float(step(batch).loss))
        if where == "between" and step.steps == FATAL and is_last and attempt() == 0:
            die()
        if step.steps % SAVE_EVERY == 0:
            memfit.checkpoints.save(folder / "checkpoints", step, batches=index + 1)
    whole = [
        each.full_tensor() if hasattr(each, "full_tensor") else each.detach() for each in model.parameters()
    ]
    step.close()
    if dist.get_rank() == 0:
        said = {
            "start": start,
            "restarts": attempt(),
            "losses": losses,
            "rate": schedule.get_last_lr(),
            "parameters": torch.cat([each.flatten() for each in whole]).tolist(),
        }
        (folder / "result.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
