"""Shards the model of a script that calls DistributedDataParallel, at that call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .applying import APPLIED, apply
from .degrees import Parallel


def instead_of_replicas(optimizers: Callable[[], Iterable[torch.optim.Optimizer]]) -> Callable[[], None]:
    """Make DistributedDataParallel shard the model over all ranks instead of replicating it. Returns a
    function that undoes this for later calls.
    """
    replicas = nn.parallel.DistributedDataParallel
    original = replicas.__init__

    class Shards(replicas):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        def train(self, mode: bool = True) -> Any:
            return nn.Module.train(self, mode)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            self.module.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                self.module.set_requires_gradient_sync(True)

    def init(self: Any, module: nn.Module, *_args: Any, **_kwargs: Any) -> None:
        nn.Module.__init__(self)
        apply(module, Parallel(shard=dist.get_world_size()), optimizers())
        self.__dict__[APPLIED] = True
        self.module = module
        self.require_backward_grad_sync = True
        self.__class__ = Shards

    replicas.__init__ = init

    def undo() -> None:
        replicas.__init__ = original

    return undo
