"""The variables of processes that train together on this machine, as torchrun sets them."""

from __future__ import annotations

import os
import socket


def environments(world: int) -> list[dict[str, str]]:
    """Return the environment of each rank. They use gloo, on a free port, and one thread each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
