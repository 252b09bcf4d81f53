"""A module's buffers, saved at the start of each window so that a failed one leaves them unchanged."""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple

import torch
from torch import nn

from memfit._levers.saying import warn

from .faults import is_memory

# Above this total size, the copies are kept in host memory.
_MAX_DEVICE_BYTES = 64 << 20
# Number of windows after which the model's modules are listed again.
_WALK_INTERVAL = 64


class _Place(NamedTuple):
    """A buffer's location: its full path, its module's table of buffers, and its name in that table."""

    path: str
    table: dict[str, torch.Tensor | None]
    name: str

    def set(self, buffer: torch.Tensor | None) -> None:
        """Assign a buffer to this location."""
        if self.table.get(self.name) is not buffer:
            self.table[self.name] = buffer


class Buffers:
    """Copies of a module's buffers (running statistics, for example), which a forward pass may write to.

    The first window copies all of them. Later windows copy only those that ever changed, into preallocated
    memory, because copies take time. All are copied again when a module switches between training and
    evaluation, which changes what it writes to.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._windows = 0
        self._places: list[_Place] = []
        # Modules that have buffers, and the training flag of each.
        self._owners: list[nn.Module] = []
        self._training: list[bool] = []
        # Compare all copies at the end of the window.
        self._learns = True
        self._changing: set[str] = set()
        # The buffers that are copied: location, identity before the window, shape and type, and the copy.
        self._moving: list[_Place] = []
        self._known: list[torch.Tensor | None] = []
        self._like: list[tuple[torch.Size, torch.dtype]] = []
        self._copies: list[torch.Tensor | None] = []
        # The same copies as pairs of lists, one for each type and device.
        self._groups: list[tuple[list[int], list[torch.Tensor]]] = []
        # Buffers that never changed so far, and their version counters before the window.
        self._steady: list[_Place] = []
        self._still: list[torch.Tensor | None] = []
        self._versions: list[int] = []
        self._warned = False

    def keep(self) -> None:
        """Save the current buffers."""
        # Listing all modules takes longer than the rest of a window's bookkeeping, so it is repeated only
        # every few windows.
        if self._windows < 2 or self._windows % _WALK_INTERVAL == 0:
            self._walk()
        self._windows += 1
        if not self._places:
            return
        training = [module.training for module in self._owners]
        if training != self._training:
            self._training = training
            self._learns = True
            self._choose()
        if self._moving:
            now = [table.get(name) for _, table, name in self._moving]
            if self._are_known(now):
                self._copy(now)
            else:
                self._make(now)
        if self._steady:
            self._still = [table.get(name) for _, table, name in self._steady]
            self._versions = [_version(buffer) for buffer in self._still]

    def restore(self) -> None:
        """Restore the saved buffers."""
        with torch.no_grad():
            for place, buffer, copy in zip(self._moving, self._known, self._copies, strict=False):
                place.set(buffer)
                if buffer is not None and copy is not None:
                    buffer.copy_(copy)
        lost = []
        for place, buffer, version in zip(self._steady, self._still, self._versions, strict=False):
            place.set(buffer)
            if not self._learns and _version(buffer) != version:
                lost.append(place.path)
        if lost and not self._warned:
            self._warned = True
            warn(
                f"a failed window wrote to `{lost[0]}` for the first time, so it could not be restored; from "
                "the next window on it will be"
            )
        self._changing.update(lost)

    def settle(self) -> set[str]:
        """End the window and return the names of all buffers that ever changed."""
        before = len(self._changing)
        if self._steady:
            now = [table.get(name) for _, table, name in self._steady]
            versions = [_version(buffer) for buffer in now]
            if versions != self._versions or not all(map(is_, now, self._still)):
                self._changing |= {
                    place.path
                    for place, old, new, version, later in zip(
                        self._steady, self._still, now, self._versions, versions, strict=True
                    )
                    if old is not new or version != later
                }
        if self._learns and self._places:
            # Batch normalisation updates its statistics without a new version, so all buffers are compared
            # once.
            self._changing |= {
                path
                for (path, table, name), copy in zip(self._moving, self._copies, strict=True)
                if not _same(copy, table.get(name))
            }
        if self._learns or len(self._changing) > before:
            self._learns = False
            self._choose()
        return self._changing

    def _walk(self) -> None:
        """List all buffers of the model."""
        modules = [(path, module) for path, module in self._model.named_modules() if module._buffers]
        self._owners = [module for _, module in modules]
        places = [
            _Place(f"{path}.{name}" if path else name, module._buffers, name)
            for path, module in modules
            for name in module._buffers
        ]
        if [place.path for place in places] != [place.path for place in self._places]:
            self._learns = True
            self._training = [module.training for module in self._owners]
        self._places = places
        self._choose()

    def _choose(self) -> None:
        """Decide which buffers are copied and which only have their version checked."""
        self._moving = [place for place in self._places if self._learns or place.path in self._changing]
        self._steady = [place for place in self._places if place.path not in self._changing]
        self._known, self._copies, self._groups = [], [], []
        self._still, self._versions = [], []

    def _are_known(self, now: list[torch.Tensor | None]) -> bool:
        """Return `True` if these are the buffers of the previous window, with the same shapes and types."""
        return (
            len(now) == len(self._known)
            and all(map(is_, now, self._known))
            and [(each.shape, each.dtype) for each in now if each is not None] == self._like
        )

    def _copy(self, now: list[torch.Tensor | None]) -> None:
        with torch.no_grad():
            for indices, copies in self._groups:
                torch._foreach_copy_(copies, [now[index] for index in indices])

    def _make(self, now: list[torch.Tensor | None]) -> None:
        """Allocate the copies and fill them."""
        there = [each for each in now if each is not None]
        self._known, self._copies, self._groups = now, [], []
        self._like = [(each.shape, each.dtype) for each in there]
        with torch.no_grad():
            try:
                if sum(each.nbytes for each in there) > _MAX_DEVICE_BYTES:
                    self._copies = _on_host(now)
                else:
                    self._copies = [each if each is None else each.clone() for each in now]
            except RuntimeError as error:
                if not is_memory(error, there[0].device):
                    raise
                self._copies = _on_host(now)
        groups: dict[Any, tuple[list[int], list[torch.Tensor]]] = {}
        for index, (each, copy) in enumerate(zip(now, self._copies, strict=True)):
            if each is not None and copy is not None:
                # Grouped by type and device, so that one kernel copies a group.
                indices, copies = groups.setdefault((each.dtype, each.device, copy.device), ([], []))
                indices.append(index)
                copies.append(copy)
        self._groups = list(groups.values())


def _version(buffer: torch.Tensor | None) -> int:
    return -1 if buffer is None else buffer._version


def _same(copy: torch.Tensor | None, now: torch.Tensor | None) -> bool:
    if copy is None or now is None:
        return copy is now
    try:
        return torch.equal(copy, now.to(copy.device))
    except RuntimeError as error:
        if not is_memory(error, now.device):
            raise
        # The step is done and the comparison does not fit into memory: assume that the buffer changed.
        return False


def _on_host(kept: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [each if each is None else each.to("cpu", copy=True) for each in kept]
