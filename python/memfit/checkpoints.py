"""Checkpoints of a training run that any number of ranks can read, with `torch.distributed.checkpoint`.

  resumed = memfit.checkpoints.load("checkpoints", step)     # None if there is none yet
  …
  memfit.checkpoints.save("checkpoints", step, epoch=epoch)  # between two optimizer steps

Each rank writes the shards that it holds. A checkpoint is written to a folder with a temporary name, which is
renamed once all ranks are done, so what is found under a checkpoint's name is complete.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from memfit._errors import MemfitError
from memfit._train.optimizers import as_one, members, schedulers
from memfit._train.step import Step

_PREFIX = "step-"
_UNFINISHED = ".unfinished"
# Written last by PyTorch: what each file of a checkpoint holds.
_INDEX = ".metadata"
# Written by rank 0: what is the same on all ranks.
_REST = "rest.pt"


class CheckpointError(MemfitError):
    """A checkpoint that cannot be written or read."""


def save(folder: str | os.PathLike[str], step: Step, *, keep: int = 2, **more: Any) -> Path:
    """Save a step's model, optimizer, scheduler and state, and `more` values of the script's own, which have
    to be equal on all ranks. Return the checkpoint's folder.

    All ranks call this, between two optimizer steps. Older checkpoints than the last `keep` are deleted.
    """
    if step.has_open_window:
        raise CheckpointError(
            "an accumulation window is open, whose gradients are not part of a checkpoint\n"
            "hint: save after a batch whose `result.stepped` is true, or after `step.finish()`"
        )
    if keep < 1:
        raise ValueError(f"`keep` is {keep}, but has to be at least 1")
    path = Path(folder)
    final = path / f"{_PREFIX}{step.steps:09}"
    unfinished = final.with_name(final.name + _UNFINISHED)
    if _is_first():
        # Left by a process that was killed while it wrote.
        for old in path.glob(f"{_PREFIX}*{_UNFINISHED}"):
            shutil.rmtree(old)
        unfinished.mkdir(parents=True)
    _wait()
    model, optimizer = get_state_dict(step.model, members(as_one(step.optimizer)))
    dcp.save(
        {"model": model, "optimizer": optimizer}, checkpoint_id=unfinished, no_dist=not dist.is_initialized()
    )
    _wait()
    if _is_first():
        rest = {
            "step": step.state_dict(),
            "schedulers": [each.state_dict() for each in schedulers(step.scheduler)],
            "more": more,
        }
        torch.save(rest, unfinished / _REST)
        if final.exists():
            shutil.rmtree(final)
        unfinished.rename(final)
        for old in _complete(path)[:-keep]:
            shutil.rmtree(old)
    _wait()
    return final


def load(folder: str | os.PathLike[str], step: Step) -> dict[str, Any] | None:
    """Load the last complete checkpoint of a folder into a step, on as many ranks as there are now. Return
    the `more` values of `save`, or `None` if there is no checkpoint.
    """
    path = latest(folder)
    if path is None:
        return None
    model, optimizer = get_state_dict(step.model, members(as_one(step.optimizer)))
    state = {"model": model, "optimizer": optimizer}
    try:
        rest = torch.load(path / _REST, map_location="cpu", weights_only=True)
        dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
    except (dcp.api.CheckpointException, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be loaded: {error}\nhint: it may be damaged, or of another model or optimizer"
        ) from error
    scheduled = schedulers(step.scheduler)
    if len(scheduled) != len(rest["schedulers"]):
        raise CheckpointError(
            f"{path} cannot be loaded: it has {len(rest['schedulers'])} schedulers, and the step {len(scheduled)}"
        )
    set_state_dict(
        step.model,
        members(as_one(step.optimizer)),
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    for scheduler, saved in zip(scheduled, rest["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    step.load_state_dict(rest["step"])
    found: dict[str, Any] = rest["more"]
    return found


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """Return the last complete checkpoint in a folder."""
    found = _complete(Path(folder))
    return found[-1] if found else None


def _complete(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.glob(f"{_PREFIX}*")
        if not path.name.endswith(_UNFINISHED) and (path / _INDEX).is_file() and (path / _REST).is_file()
    )


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()
