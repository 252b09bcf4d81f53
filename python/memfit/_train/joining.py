"""Concatenates the outputs of micro-batches."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Mapping
from typing import Any

import torch

from .batches import is_namedtuple


def _are_fields(parts: list[Any], sizes: list[int]) -> bool:
    """Return `True` if the outputs are lists of fields to be concatenated, rather than one output
    per sample.
    """
    first = parts[0]
    if not first or any(len(part) != len(first) for part in parts):
        return False
    if all(len(part) == size for part, size in zip(parts, sizes, strict=True)) and not all(
        isinstance(entry, torch.Tensor) and entry.shape[:1] == (size,)
        for part, size in zip(parts, sizes, strict=True)
        for entry in part
    ):
        # As many entries as samples, and no batched tensors: one entry per sample.
        return False
    return all(
        isinstance(part[index], torch.Tensor) and part[index].shape[1:] == first[index].shape[1:]
        for part in parts
        for index in range(len(first))
    )


def join(parts: list[Any], sizes: list[int]) -> Any:
    """Concatenate the outputs of micro-batches of the given sizes into the output of the whole batch."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(parts) if first.dim() > 0 else torch.stack(parts)
    if isinstance(first, UserDict):
        same = copy.copy(first)
        same.data = {key: join([part[key] for part in parts], sizes) for key in first}
        return same
    if isinstance(first, Mapping):
        entries = {key: join([part[key] for part in parts], sizes) for key in first}
        return entries if type(first) is dict else type(first)(**entries)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return dataclasses.replace(
            first,
            **{
                field.name: join([getattr(part, field.name) for part in parts], sizes)
                for field in dataclasses.fields(first)
                if field.init
            },
        )
    if isinstance(first, (list, tuple)):
        if is_namedtuple(first):
            return type(first)(*(join(list(entries), sizes) for entries in zip(*parts, strict=True)))
        if isinstance(first, list) and not _are_fields(parts, sizes):
            return [entry for part in parts for entry in part]
        return type(first)(join(list(entries), sizes) for entries in zip(*parts, strict=True))
    return first if all(part == first for part in parts) else list(parts)
