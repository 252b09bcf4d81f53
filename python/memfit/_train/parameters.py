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

from .device import local

# So many values of a parameter tell whether ranks have the same one.
_TELLING = 64


class Parameters:
    """A criterion's own parameters, learned weights of losses and the like are in no model, and are stepped
    with all the same.

    They are listed again whenever the optimizer's groups or the model's modules have others.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        self.all: list[torch.Tensor] = []
        # Those that the model does not have, and what each was like when it was first met.
        self._outside: list[torch.Tensor] = []
        self._first: Any = WeakTensorKeyDictionary()
        self._mark: float | None = None
        # The modules' tables, and what was in them and in the groups when they were last listed.
        self._tables: list[Any] = []
        self._held: list[Any] = []
        self._grouped: list[torch.Tensor] = []
        self.look()

    def look(self) -> list[torch.Tensor]:
        """List them again if there are others; those that were listed before."""
        before = self.all
        # Walking a model takes longer than to see that its tables are as they were.
        held = list(chain.from_iterable([table.values() for table in self._tables]))
        grouped = self._in_groups()
        if self._tables and _same(held, self._held) and _same(grouped, self._grouped):
            return before
        tables = [table for each in self._model.modules() for table in (each._modules, each._parameters)]
        # Those that are empty are most of them, and what somebody puts there to be trained is in a group as
        # well.
        self._tables = [*tables[:2], *[table for table in tables[2:] if len(table) > 0]]
        self._held = list(chain.from_iterable([table.values() for table in self._tables]))
        self._grouped = grouped
        inside = dict.fromkeys(self._model.parameters())
        self.all = list(dict.fromkeys([*inside, *grouped]))
        # What lies on a mesh is exchanged by whoever put it there.
        self._outside = [each for each in self.all if each not in inside and not hasattr(each, "device_mesh")]
        self._mark = None
        return before

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All of them: by the model's names, and else by their place in the optimizer's groups."""
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
        """Add these, by the parameters' names, to those that are there."""
        for name, parameter in self.named():
            if name in gradients:
                gradient = gradients[name].to(parameter.device)
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).add_(gradient)

    def mark(self) -> float:
        """What those outside the model are like, in a number: ranks that have the same ones have the same
        number.
        """
        if self._mark is None:
            for each in self._outside:
                if each not in self._first:
                    # From here on they are stepped alike, on devices that may round differently.
                    values = each.detach().reshape(-1)[:_TELLING].double().tolist()
                    self._first[each] = (tuple(each.shape), str(each.dtype), values)
            said = repr([self._first[each] for each in self._outside])
            self._mark = float(zlib.crc32(said.encode()))
        return self._mark

    def _in_groups(self) -> list[torch.Tensor]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))
