"""Runs the scripts of examples/broken one after another in one process, which is one import of torch for all.

    memfit run --gpu t4 --memory 4GiB --steps 0 -- python broken_driver.py FOLDER SCRIPT[@SETTINGS]...

Each starts from an empty cache, and a snapshot of its whole history lies in FOLDER afterwards where it ran
out of memory. What came of each is a line of JSON on standard output.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import runpy
import sys
from pathlib import Path

import torch

DEFAULTS = "expandable_segments:False"


def attempt(script: Path, settings: str, snapshot: Path) -> dict[str, object]:
    """Return `True` if a script fits with these allocator settings."""
    torch.cuda.memory._set_allocator_settings(settings or DEFAULTS)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.memory._record_memory_history(stacks="python")
    torch.cuda.reset_peak_memory_stats()
    problem = failed = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    except torch.OutOfMemoryError as error:
        problem = str(error)
        torch.cuda.memory._dump_snapshot(str(snapshot))
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    stats = torch.cuda.memory_stats()
    return {
        "script": script.stem,
        "oom": problem,
        "failed": failed,
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
    }


def clean_up() -> None:
    """Remove everything that one script leaves behind before the next one starts."""
    torch.cuda.memory._record_memory_history(enabled=None)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def main() -> None:
    torch.cuda.init()
    folder = Path(sys.argv[1])
    for argument in sys.argv[2:]:
        path, _, settings = argument.partition("@")
        script = Path(path)
        sys.argv = [path]
        answer = attempt(script, settings, folder / f"{script.stem}.pickle")
        clean_up()
        answer["left"] = torch.cuda.memory_reserved()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
