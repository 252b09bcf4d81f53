"""Scripts that end right after a backward pass, many times, and how they ended.

    memfit run --gpu t4 --steps 0 --timeout 0 --show-output -- python -I scripts/faults/exits.py [TIMES]

A thread of autograd's may ask for Python's objects while Python ends; before 3.14 CPython kills such a
thread, and with it the process. Each time is a process of its own, forked when torch has been imported, that
trains a step and comes to its own end.
"""

import collections
import os
import sys

import torch
from torch import nn


class Slow(torch.autograd.Function):
    """Asks for Python in the backward pass, on autograd's own thread."""

    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


def train() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).cuda()
    for _ in range(2):
        x = torch.randn(8, 64, device="cuda")
        for layer in model:
            x = Slow.apply(layer(x))
        x.sum().backward()


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    ended: collections.Counter[int] = collections.Counter()
    for _ in range(times):
        child = os.fork()
        if child == 0:
            train()
            return 0
        ended[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
    print(f"of {times} processes, by exit status:", dict(ended), file=sys.stderr)
    return int(set(ended) != {0})


if __name__ == "__main__":
    sys.exit(main())
