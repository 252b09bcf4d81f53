"""Run a command on the virtual GPU without the watcher: with the device, but without probe and event log.

To be started by `memfit run -- python unwatched.py COMMAND…`. The steps of the command are not counted
then, so the run has to go to its end (`--steps 0`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """Return the environment of this process without the probe and the watcher library."""
    env = dict(os.environ)
    preloaded = [name for name in env.get("LD_PRELOAD", "").split(":") if name and "memfit_watch" not in name]
    env["LD_PRELOAD"] = ":".join(preloaded)
    folders = [
        f for f in env.get("PYTHONPATH", "").split(":") if f and not (Path(f) / "sitecustomize.py").exists()
    ]
    env["PYTHONPATH"] = ":".join(folders)
    return env


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
