"""Ranks that are stuck in a collective to which another rank does not come: getting them out, and the groups
in order again.

A rank that fails and leaves others behind says so in the store through which the groups met. Whoever waits
for a collective looks there now and then, gives it up, and comes to where the ranks agree; on a card, where
the host waits for more than collectives, a thread looks, and aborts the groups. What is left of a collective
that was given up would be taken for a part of the next one, so each group then gets new connections. They are
put into the same group object, since meshes, modules and the user's variables hold on to it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

# How long a collective is waited for before anybody looks whether it will come to an end.
_LOOK = timedelta(seconds=0.3)
# How long a rank waits for the others to agree before it says so.
_PATIENCE = timedelta(seconds=5)
# How long a collective is waited for to which another rank may still come, though it waits elsewhere.
_GRACE = 30.0

# A group knows its backends by numbers of eight bits, the first of which have a meaning, and takes no second
# one for a number: so many times it can be mended.
_NUMBERS = range(100, 256)

_wait = dist.Work.wait if dist.is_available() else None
# Who looks after the collectives that are waited for now, innermost last.
_rescues: list[Rescue] = []
# How often each group was mended.
_mended: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
# Names of the groups over which ranks agree, which are never given up.
_channels: set[str] = set()


class PeerFailed(RuntimeError):  # noqa: N818
    """Another rank did not come to a collective: raised in its place, and never seen by the user."""


class Rescue:
    """Looks after the collectives of some ranks' steps."""

    def __init__(self, group: Any, side: Any, device: torch.device, timeout: float) -> None:
        self._rank = dist.get_rank(group)
        self._device = device
        self._timeout = timeout
        _channels.add(side.group_name)
        whole = c10d._world.pg_map[group or dist.group.WORLD][1]
        self._store = dist.PrefixStore(f"memfit/{side.group_name}", whole)
        self._ranks = set(dist.get_process_group_ranks(group or dist.group.WORLD))
        # The attempt that runs, by its number, which is the same on all ranks.
        self._attempts = 0
        self._key: str | None = None
        # Whether a collective was given up, or left to others, since the groups were last in order.
        self.broken = False
        # Whether somebody waited for a collective in the midst of a part.
        self.met = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        # The thread that runs, and whether it runs a part.
        self._here = 0
        self._inside = False

    # ---------------------------------------------------------------------------------------- saying so

    def begin(self) -> None:
        """All ranks begin an attempt at a window."""
        self._attempts += 1
        self._key = str(self._attempts)

    def leave(self, surely: bool = True) -> None:
        """This rank does not come to what the others wait for: surely, or in case they do."""
        self.broken = self.broken or surely
        if self._key is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set(self._key, f"{'left' if surely else 'failed'} {self._rank}")

    def tell(self, work: Any) -> None:
        """Wait for what ranks tell one another: a rank that waits long says so, for those that wait for it
        elsewhere.
        """
        assert _wait is not None
        try:
            _wait(work, _PATIENCE)
            return
        except RuntimeError:
            if work.is_completed():
                raise
        if self._key is not None and not self._store.check([self._key]):
            self._store.set(self._key, f"waits {self._rank}")
        _wait(work)

    def _said(self) -> tuple[str, int] | None:
        """What a rank said: that it "left" others in a collective, that it "failed" and may have, or that it
        "waits" where ranks agree; and which.
        """
        with contextlib.suppress(RuntimeError):
            if self._key is not None and self._store.check([self._key]):
                how, rank = self._store.get(self._key).decode().split()
                return (how, int(rank)) if int(rank) != self._rank else None
        return None

    # ---------------------------------------------------------------------------------------- getting out

    @contextlib.contextmanager
    def watching(self, inside: bool) -> Iterator[None]:
        """Collectives that are waited for in here, `inside` a part or between them, do not wait for a rank
        that failed.
        """
        self._inside = inside
        self._here = threading.get_ident()
        _rescues.append(self)
        try:
            yield
        finally:
            _rescues.remove(self)

    @property
    def _polls(self) -> bool:
        """Whether to wait for a collective is to wait for other processes, and for nothing else."""
        return self._device.type == "cpu"

    @property
    def looks(self) -> bool:
        """Whether a collective that is waited for here and now is a part's."""
        return self._polls and threading.get_ident() == self._here

    def wait(self, work: Any) -> Any:
        """Wait for a collective."""
        assert _wait is not None
        self.met = self.met or self._inside
        waited = 0.0
        while True:
            try:
                return _wait(work, _LOOK)
            except RuntimeError:
                if work.is_completed():
                    raise
            waited += _LOOK.total_seconds()
            said = self._said()
            if said is not None and (said[0] != "waits" or waited > min(_GRACE, self._timeout / 4)):
                self.broken = True
                raise PeerFailed(f"rank {said[1]} does not come to {_name(work)}, which this rank waits for")

    def watch(self) -> None:
        """Have a thread look after this rank's collectives, where the host waits for the card."""
        if self._thread is None and not self._polls:
            self._thread = threading.Thread(target=self._watch, name="memfit-rescue", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        seen = 0
        # Once a second.
        while not self._closed.wait(1.0):
            said = self._said() if self in _rescues else None
            how = said[0] if said is not None else "waits"
            seen = 0 if how == "waits" else seen + 1
            # A rank that is not stuck comes to where ranks agree by itself.
            if seen >= (_PATIENCE.total_seconds() if how == "left" else _GRACE):
                self.broken = self.met = True
                self.abort()
                seen = 0

    def gave_up(self, error: Exception) -> bool:
        """Whether an error only says that a collective was given up."""
        return isinstance(error, PeerFailed) or (self.broken and isinstance(error, dist.DistError))

    # ---------------------------------------------------------------------------------------- mending

    def _groups(self) -> list[Any]:
        """The groups of these ranks, in the order in which all of them made them."""
        return [
            group
            for group, name in c10d._world.pg_names.items()
            if name not in _channels and set(dist.get_process_group_ranks(group)) <= self._ranks
        ]

    def abort(self) -> None:
        """Let nobody wait for a collective any more."""
        for group in self._groups():
            with contextlib.suppress(RuntimeError):
                group._get_backend(self._device).abort()

    def mend(self) -> None:
        """All ranks are here: the groups get new connections."""
        self.abort()
        for group in self._groups():
            mended = _mended.get(group, 0)
            if mended == len(_NUMBERS):
                raise RuntimeError(
                    f"a collective had to be given up for the {mended + 1}th time, and PyTorch lets a process group be "
                    "mended no more often\n"
                    "hint: memory keeps running out in the middle of collectives; a smaller `micro_batch` avoids that"
                )
            _mended[group] = mended + 1
            self._renew(group, mended)
        self.broken = False

    def _renew(self, group: Any, mended: int) -> None:
        try:
            old = group._get_backend(self._device)
        except RuntimeError:
            # A group for another kind of device.
            return
        store = dist.PrefixStore(f"memfit/{mended}/", c10d._world.pg_map[group][1])
        new = _like(old, store)
        if new is None:
            raise RuntimeError(
                f"a collective had to be given up, and memfit does not know how to mend a group of {type(old).__name__}\n"
                "hint: gloo and NCCL are known"
            )
        name, description = group.group_name, group.group_desc
        number = dist.ProcessGroup.BackendType(_NUMBERS[mended])
        for kind in group._device_types:
            if group._get_backend(kind) is old:
                group._register_backend(kind, number, new)
        # Backends are what a group's name is kept in.
        group._set_group_name(name)
        group._set_group_desc(description)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._key = None


def _like(old: Any, store: Any) -> Any:
    """New connections among the same ranks."""
    rank, size = old.rank(), old.size()
    for name in ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
        nccl = getattr(c10d, name, None)
        if nccl is not None and isinstance(old, nccl):
            return nccl(store, rank, size, old.options)
    gloo = getattr(dist, "ProcessGroupGloo", None)
    if gloo is not None and isinstance(old, gloo):
        return gloo(store, rank, size, old.options._timeout)
    return None


def _name(work: Any) -> str:
    """Which collective it is."""
    with contextlib.suppress(Exception):
        return f"a collective ({work._get_op_type().name.lower()})"
    return "a collective"


def _waits(work: Any, *limit: Any, **keywords: Any) -> Any:
    """Stands in front of `Work.wait`."""
    assert _wait is not None
    if limit or keywords or not _rescues or not _rescues[-1].looks:
        return _wait(work, *limit, **keywords)
    return _rescues[-1].wait(work)


def stand_in_front() -> Callable[[], None]:
    """Have waits for collectives looked after; what undoes it."""
    global _users
    _users += 1
    dist.Work.wait = _waits  # type: ignore[method-assign]

    def undo() -> None:
        global _users
        _users -= 1
        if not _users:
            dist.Work.wait = _wait  # type: ignore[method-assign, assignment]

    return undo


_users = 0
