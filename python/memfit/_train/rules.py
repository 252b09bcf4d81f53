"""Rules for splitting batches: settings of the user, and findings from earlier batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

Cut = Callable[[Any, int, int], Any]

# Number of cached layouts; batches of sequences may have one for every length.
_MAX_LAYOUTS = 1 << 12


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout shared by flat batches with equal shapes and types: several tensors and no nested
    containers.
    """

    items: int
    shape: str
    # The layout without sequence lengths.
    structure: str
    elements: int
    # For each tensor, `True` if it is split along the batch dimension.
    cut: tuple[bool, ...]


class Layouts:
    """Cached layouts, and which tensors were passed whole to every micro-batch of an earlier batch.

    Class weights of length 3 are shared by a batch of 16 samples. In the epoch's last batch of 3 samples,
    only that earlier batch shows that they are not one weight for each sample.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Layout] = {}
        self._shared: set[Any] = set()

    def find(self, key: Any) -> Layout | None:
        return self._known.get(key)

    def add(self, key: Any, kind: type, entries: Sequence[torch.Tensor], layout: Layout) -> None:
        """Cache a layout, and remember the tensors that it shares."""
        shared = {
            self._place(kind, entries, index)
            for index, is_cut in enumerate(layout.cut)
            if not is_cut and entries[index].dim() > 0
        }
        if any(layout.cut) and not shared <= self._shared:
            self._shared |= shared
            # One of these may have been split in a batch of just its length.
            self._known.clear()
        if len(self._known) >= _MAX_LAYOUTS:
            self._known.clear()
            self._shared.clear()
        self._known[key] = layout

    def shared(self, kind: type, entries: Sequence[torch.Tensor]) -> frozenset[int]:
        """Return the identities of the tensors that earlier batches shared at the same place, with the same
        shape.
        """
        if not self._shared:
            return frozenset()
        found = frozenset(
            id(entry)
            for index, entry in enumerate(entries)
            if self._place(kind, entries, index) in self._shared
        )
        # Something has to be split.
        return found if len(found) < len(entries) else frozenset()

    @staticmethod
    def _place(kind: type, entries: Sequence[torch.Tensor], index: int) -> Any:
        entry = entries[index]
        return kind, len(entries), index, entry.shape, entry.dtype


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules for dividing the batches of a training run."""

    # The user's `batch_size=`, `batch_dim=` and `split=`.
    count: Callable[[Any], int] | None = None
    dimension: int = 0
    split: Cut | None = None
    layouts: Layouts = dataclasses.field(default_factory=Layouts)
