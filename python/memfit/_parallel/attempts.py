"""A separate store for each attempt of a training run that torchrun restarts.

torchrun's agent keeps one store for all attempts (`TORCHELASTIC_USE_AGENT_STORE`). Backends write their
addresses to it under the same names in each attempt, so a restarted rank may read those of dead processes,
and wait for them or end with "connection refused" (https://github.com/pytorch/pytorch/issues/135712). The
count of restarts does not tell attempts apart, since each machine has its own. So the ranks of an attempt
agree on a name that none had before.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from .degrees import ParallelError

_TIMEOUT = timedelta(minutes=5)
# Seconds between two polls of the store.
_PAUSE = 0.05


def keeps_old_keys() -> bool:
    """Return `True` if the store of this process's variables is that of torchrun's agent."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def own_store() -> dist.Store:
    """Return a store that only the processes of this attempt use. All ranks call this."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, world_size=world, is_master=False, timeout=_TIMEOUT)
    return dist.PrefixStore(f"memfit/{agree(store, rank, world)}", store)


def agree(store: dist.Store, rank: int, world: int, timeout: timedelta = _TIMEOUT) -> str:
    """Agree on a name for this attempt that no earlier attempt had.

    Each rank publishes a random number. Rank 0 answers the numbers that it finds, some of which may be from
    dead processes, with its own, which becomes the name. It repeats this until each rank has seen an answer
    to its own number.
    """
    own = uuid.uuid4().hex
    until = time.monotonic() + timeout.total_seconds()
    if rank > 0:
        store.set(f"memfit/drawn/{rank}", own)
        while True:
            name, _, answered = store.get(f"memfit/answer/{rank}").decode().partition(" ")
            if answered == own:
                store.set(f"memfit/joined/{name}/{rank}", "")
                return name
            _pause(until, "rank 0 did not join")
    others = range(1, world)
    joined = [f"memfit/joined/{own}/{each}" for each in others]
    while others:
        drawn = store.multi_get([f"memfit/drawn/{each}" for each in others])
        answers = [f"{own} {each.decode()}" for each in drawn]
        store.multi_set([f"memfit/answer/{each}" for each in others], answers)
        if store.check(joined):
            break
        _pause(until, "a rank did not join")
    return own


def _pause(until: float, why: str) -> None:
    if time.monotonic() > until:
        raise ParallelError(f"{why} after a restart", "start the training again")
    time.sleep(_PAUSE)
