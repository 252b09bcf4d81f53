"""A module's buffers, saved at the start of each window so that a failed one leaves them unchanged."""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple

import torch
from torch import nn

from memfit._levers.saying import warn

from .device import computes
from .faults import is_memory

# Above this total size, the copies are kept in host memory.
_MAX_DEVICE_BYTES = 64 << 20
# Number of windows after which the model's modules are listed again.
_LIST_INTERVAL = 64
_NORM = nn.modules.batchnorm._NormBase


class _Slot(NamedTuple):
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
        self._slots: list[_Slot] = []
        # Modules that have buffers, and the training flag of each.
        self._owners: list[nn.Module] = []
        self._training: list[bool] = []
        # `True` if all buffers are copied, and compared at the end of the window to find those that change.
        self._copies_all = True
        self._changing: set[str] = set()
        # Parallel lists of the buffers that are copied: location, buffer, shape and type, copy.
        self._copied: list[_Slot] = []
        self._copied_buffers: list[torch.Tensor | None] = []
        self._copied_formats: list[tuple[torch.Size, torch.dtype]] = []
        self._copies: list[torch.Tensor | None] = []
        # The same copies as pairs of lists, one for each type and device.
        self._groups: list[tuple[list[int], list[torch.Tensor]]] = []
        # Buffers that never changed so far, and their version counters before the window: a new version shows
        # that a buffer was written to.
        self._watched: list[_Slot] = []
        self._watched_buffers: list[torch.Tensor | None] = []
        self._watched_versions: list[int] = []
        self._warned = False

    def keep(self) -> None:
        """Save the buffers at the start of a window."""
        # Listing all modules takes longer than the rest of a window's bookkeeping, so it is repeated only
        # every few windows.
        if self._windows < 2 or self._windows % _LIST_INTERVAL == 0:
            self._list_buffers()
        self._windows += 1
        if not self._slots:
            return
        training = [module.training for module in self._owners]
        if training != self._training:
            self._training = training
            self._copies_all = True
            self._choose_copied()
        if self._copied:
            now = [table.get(name) for _, table, name in self._copied]
            if self._are_unchanged(now):
                self._copy(now)
            else:
                self._allocate_copies(now)
        if self._watched:
            self._watched_buffers = [table.get(name) for _, table, name in self._watched]
            self._watched_versions = [_version(buffer) for buffer in self._watched_buffers]

    def restore(self) -> None:
        """Restore the saved buffers."""
        with torch.no_grad():
            for place, buffer, copy in zip(self._copied, self._copied_buffers, self._copies, strict=False):
                place.set(buffer)
                if buffer is not None and copy is not None:
                    buffer.copy_(copy)
        lost = []
        for place, buffer, version in zip(
            self._watched, self._watched_buffers, self._watched_versions, strict=False
        ):
            place.set(buffer)
            if not self._copies_all and _version(buffer) != version:
                lost.append(place.path)
        if lost and not self._warned:
            self._warned = True
            warn(
                f"a failed window wrote to the buffer `{lost[0]}`, which had never changed before and was not "
                "saved, so it keeps the new value; later windows save it"
            )
        self._changing.update(lost)

    def settle(self) -> set[str]:
        """End the window and return the names of all buffers that ever changed."""
        before = len(self._changing)
        if self._watched:
            now = [table.get(name) for _, table, name in self._watched]
            versions = [_version(buffer) for buffer in now]
            if versions != self._watched_versions or not all(map(is_, now, self._watched_buffers)):
                self._changing |= {
                    place.path
                    for place, old, new, version, later in zip(
                        self._watched,
                        self._watched_buffers,
                        now,
                        self._watched_versions,
                        versions,
                        strict=True,
                    )
                    if old is not new or version != later
                }
        if self._copies_all and self._slots:
            # Batch normalisation updates its statistics without a new version, so all buffers are compared
            # once. On a virtual GPU, which has no values to compare, its buffers count as changed.
            norms = {
                id(module._buffers)
                for module in self._owners
                if isinstance(module, _NORM) and module.training
            }
            self._changing |= {
                path
                for (path, table, name), copy in zip(self._copied, self._copies, strict=True)
                if (not _is_same(copy, table.get(name)) if computes() else id(table) in norms)
            }
        if self._copies_all or len(self._changing) > before:
            self._copies_all = False
            self._choose_copied()
        return self._changing

    def _list_buffers(self) -> None:
        """List all buffers of the model."""
        modules = [(path, module) for path, module in self._model.named_modules() if module._buffers]
        self._owners = [module for _, module in modules]
        places = [
            _Slot(f"{path}.{name}" if path else name, module._buffers, name)
            for path, module in modules
            for name in module._buffers
        ]
        if [place.path for place in places] != [place.path for place in self._slots]:
            self._copies_all = True
            self._training = [module.training for module in self._owners]
        self._slots = places
        self._choose_copied()

    def _choose_copied(self) -> None:
        """Decide which buffers are copied and which only have their version checked."""
        self._copied = [place for place in self._slots if self._copies_all or place.path in self._changing]
        self._watched = [place for place in self._slots if place.path not in self._changing]
        self._copied_buffers, self._copies, self._groups = [], [], []
        self._watched_buffers, self._watched_versions = [], []

    def _are_unchanged(self, now: list[torch.Tensor | None]) -> bool:
        """Return `True` if these are the buffers of the previous window, with the same shapes and types."""
        return (
            len(now) == len(self._copied_buffers)
            and all(map(is_, now, self._copied_buffers))
            and [(each.shape, each.dtype) for each in now if each is not None] == self._copied_formats
        )

    def _copy(self, now: list[torch.Tensor | None]) -> None:
        with torch.no_grad():
            for indices, copies in self._groups:
                torch._foreach_copy_(copies, [now[index] for index in indices])

    def _allocate_copies(self, now: list[torch.Tensor | None]) -> None:
        """Allocate the copies and fill them."""
        there = [each for each in now if each is not None]
        self._copied_buffers, self._copies, self._groups = now, [], []
        self._copied_formats = [(each.shape, each.dtype) for each in there]
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
                # One kernel copies all buffers of the same type and device.
                indices, copies = groups.setdefault((each.dtype, each.device, copy.device), ([], []))
                indices.append(index)
                copies.append(copy)
        self._groups = list(groups.values())


def _version(buffer: torch.Tensor | None) -> int:
    return -1 if buffer is None else buffer._version


def _is_same(copy: torch.Tensor | None, now: torch.Tensor | None) -> bool:
    if copy is None or now is None:
        return copy is now
    try:
        return torch.equal(copy, now.to(copy.device))
    except RuntimeError as error:
        if not is_memory(error, now.device):
            raise
        # There is too little memory for the comparison: assume that the buffer changed.
        return False


def _on_host(kept: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [each if each is None else each.to("cpu", copy=True) for each in kept]
