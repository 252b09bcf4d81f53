"""`allocator-settings`, `expandable-segments`: how PyTorch's caching allocator cuts its memory.

They are read when the process first touches the allocator, so they belong into the environment that it is
started with. A process that runs already can only be told.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from .registry import Stage, lever
from .target import CannotApply, Target, Undo

# The name since 2.9, and the one before, which is still read.
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def variables(name: str, value: Any) -> dict[str, str]:
    """What has to be in the environment; of the settings that a user made, those that the lever does not name
    stay.
    """
    if name == "expandable-segments":
        wanted = "expandable_segments:True"
    elif isinstance(value, str) and ":" in value:
        wanted = value
    else:
        raise CannotApply(
            name,
            f"its value is a text such as `max_split_size_mb:128,expandable_segments:True`, and not {value!r}",
        )
    keys = {entry.split(":")[0].strip() for entry in _entries(wanted)}
    present = os.environ.get(NEW) or os.environ.get(OLD, "")
    kept = [entry for entry in _entries(present) if entry.split(":")[0].strip() not in keys]
    joined = ",".join([*kept, *_entries(wanted)])
    # Releases before 2.9 know only the old name, and later ones take it as well.
    return {NEW: joined, OLD: joined}


@lever("allocator-settings", Stage.ENVIRONMENT, 10)
@lever("expandable-segments", Stage.ENVIRONMENT, 20)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Make sure of it."""
    wanted = variables(name, value)
    missing = [entry for entry in _entries(wanted[NEW]) if entry not in _entries(_present())]
    if not missing:
        return lambda: None
    if torch.cuda.is_initialized():
        target.note(
            f"the allocator's settings come too late: it runs already without {', '.join(f'`{entry}`' for entry in missing)}; "
            f"start the process with {NEW}={wanted[NEW]}"
        )
        return lambda: None
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)

    def undo() -> None:
        for key, old in before.items():
            if old is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = old

    return undo


def _present() -> str:
    return os.environ.get(NEW) or os.environ.get(OLD, "")


def _entries(settings: str) -> list[str]:
    """The settings one by one; a comma within brackets belongs to one of them."""
    entries, depth, start = [], 0, 0
    for index, letter in enumerate(settings):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries.append(settings[start:index])
            start = index + 1
    entries.append(settings[start:])
    return [entry.strip() for entry in entries if entry.strip()]
