"""`allocator-settings`, `expandable-segments`: settings of PyTorch's caching allocator.

The allocator reads them when it is first used, so they belong in the environment that the process is started
with. In a running process it may be too late; then only a warning is possible.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from .registry import Stage, lever
from .target import CannotApply, Target, Undo

# The variable's name since 2.9, and its older name, which still works.
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def variables(name: str, value: Any) -> dict[str, str]:
    """Return the environment variables to set; the user's other allocator settings are kept."""
    if name == "expandable-segments":
        wanted = "expandable_segments:True"
    elif isinstance(value, str) and ":" in value:
        wanted = value
    else:
        raise CannotApply(
            name,
            f"the value must be a text such as `max_split_size_mb:128,expandable_segments:True`, got {value!r}",
        )
    keys = {entry.split(":")[0].strip() for entry in _entries(wanted)}
    kept = [entry for entry in _entries(_present()) if entry.split(":")[0].strip() not in keys]
    joined = ",".join([*kept, *_entries(wanted)])
    # Versions before 2.9 know only the old name, and later ones accept both.
    return {NEW: joined, OLD: joined}


@lever("allocator-settings", Stage.ENVIRONMENT, 10)
@lever("expandable-segments", Stage.ENVIRONMENT, 20)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Check that the settings are active, or set them if the allocator was not used yet."""
    wanted = variables(name, value)
    missing = [entry for entry in _entries(wanted[NEW]) if entry not in _entries(_present())]
    if not missing:
        return lambda: None
    if torch.cuda.is_initialized():
        target.note(
            "the allocator settings come too late: the allocator is already in use without "
            f"{', '.join(f'`{entry}`' for entry in missing)}; start the process with "
            f"{_name(torch.__version__)}={wanted[NEW]}"
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


def _name(release: str) -> str:
    """Return the variable's name for a release of PyTorch."""
    major, minor = release.split(".")[:2]
    return NEW if (int(major), int(minor)) >= (2, 9) else OLD


def _present() -> str:
    return os.environ.get(NEW) or os.environ.get(OLD, "")


def _entries(settings: str) -> list[str]:
    """Split the settings at commas outside brackets."""
    entries, depth, start = [], 0, 0
    for index, letter in enumerate(settings):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries.append(settings[start:index])
            start = index + 1
    entries.append(settings[start:])
    return [entry.strip() for entry in entries if entry.strip()]
