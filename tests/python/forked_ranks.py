"""Run a script as each rank of a world: `python forked_ranks.py WORLD SCRIPT [ARGUMENT…]`.

The ranks are forked after what all of them import, so that it is imported once. Rank 0 writes to the standard
output.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

# Imported for the ranks. An optimizer imports the compiler.
import memfit  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts/distributed"))

from ranks import environments


def run_rank(script: str, arguments: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    if environment["RANK"] != "0":
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def main() -> int:
    world, script, *arguments = sys.argv[1:]
    started = []
    for environment in environments(int(world)):
        child = os.fork()
        if not child:
            run_rank(script, arguments, environment)
            return 0
        started.append(child)
    ended = [os.waitpid(child, 0)[1] for child in started]
    return int(any(ended))


if __name__ == "__main__":
    sys.exit(main())
