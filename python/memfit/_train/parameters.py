"""The parameters that a step trains: the model's, and those that only the optimizer has."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from memfit._levers.saying import warn

from .device import local

# Number of leading values that are compared to see if ranks have the same parameter.
_CHECKSUM_VALUES = 64


class Parameters:
    """The trained parameters. Some are in no model, such as a criterion's own parameters and learned loss
    weights, but are updated by the optimizer.

    They are listed again whenever the optimizer's groups or the model's modules change.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        self.all: list[torch.Tensor] = []
        # Parameters outside the model, and the shape, type and first values of each when it was first seen.
        self._outside: list[torch.Tensor] = []
        self._first: Any = WeakTensorKeyDictionary()
        self._checksum: float | None = None
        # The modules' tables, and the contents of the tables and of the groups when they were last listed.
        self._tables: list[Any] = []
        self._held: list[Any] = []
        self._grouped: list[torch.Tensor] = []
        self.look()
        trained = {id(each) for each in model.parameters()}
        if self._grouped and trained.isdisjoint(map(id, self._grouped)):
            warn(
                "the optimizer has none of the model's parameters, so the model is not trained; pass the "
                "optimizer of this model, made after the model was wrapped or sharded"
            )

    def look(self) -> list[torch.Tensor]:
        """List the parameters again if they changed; return the previous list."""
        before = self.all
        # Comparing the tables is faster than listing the modules.
        held = list(chain.from_iterable([table.values() for table in self._tables]))
        grouped = self._in_groups()
        if self._tables and _same(held, self._held) and _same(grouped, self._grouped):
            return before
        tables = [table for each in self._model.modules() for table in (each._modules, each._parameters)]
        # Most tables are empty and are skipped. A parameter added to one later, to be trained, also appears
        # in a group.
        self._tables = [*tables[:2], *[table for table in tables[2:] if len(table) > 0]]
        self._held = list(chain.from_iterable([table.values() for table in self._tables]))
        self._grouped = grouped
        inside = dict.fromkeys(self._model.parameters())
        self.all = list(dict.fromkeys([*inside, *grouped]))
        # Gradients of parameters on a mesh are exchanged by the code that put them there.
        self._outside = [each for each in self.all if each not in inside and not hasattr(each, "device_mesh")]
        self._checksum = None
        return before

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters: with the model's names, or else with their position in the optimizer's
        groups.
        """
        inside = set()
        for name, parameter in self._model.named_parameters():
            inside.add(parameter)
            yield name, parameter
        for index, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter not in inside:
                    inside.add(parameter)
                    yield f"optimizer:{index}.{place}", parameter

    def add_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add gradients by parameter name to the existing ones."""
        for name, parameter in self.named():
            if name in gradients:
                gradient = gradients[name].to(parameter.device)
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).add_(gradient)

    def checksum(self) -> float:
        """Return a checksum of the parameters outside the model; ranks with equal parameters have equal
        checksums.
        """
        if self._checksum is None:
            for each in self._outside:
                if each not in self._first:
                    # Recorded once: later updates are the same on all ranks, but devices may round
                    # differently.
                    values = each.detach().reshape(-1)[:_CHECKSUM_VALUES].double().tolist()
                    self._first[each] = (tuple(each.shape), str(each.dtype), values)
            description = repr([self._first[each] for each in self._outside])
            self._checksum = float(zlib.crc32(description.encode()))
        return self._checksum

    def _in_groups(self) -> list[torch.Tensor]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))
