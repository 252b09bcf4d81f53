"""Frees ranks that are stuck in a collective because another rank does not join it, and repairs the groups.

A rank that fails and leaves others behind reports this in the store through which the group was set up. A
rank that waits for a collective polls the store, abandons the collective, and goes on to where the ranks
agree. On a GPU, where the host waits for more than collectives, a thread polls and aborts the groups. The
remains of an abandoned collective would be taken for part of the next one, so each group then gets new
connections. They are installed in the same group object, since meshes, modules and the user's variables refer
to it.
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

# Time to wait for a collective between two polls of the store.
_POLL_INTERVAL = timedelta(seconds=0.3)
# Time a rank waits for the others to agree before it reports that it waits.
_REPORT_AFTER = timedelta(seconds=5)
# Seconds to wait for a collective that another rank may still join, though it waits elsewhere.
_GRACE_SECONDS = 30.0

# A group numbers its backends with eight bits, the first of which are reserved, and does not accept a number
# twice. The length of this range limits how often a group can be repaired.
_BACKEND_NUMBERS = range(100, 256)

_wait = dist.Work.wait if dist.is_available() else None
# The active rescues, innermost last; the last one handles waits for collectives.
_rescues: list[Rescue] = []
# Number of repairs of each group.
_mended: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
# Names of the groups over which ranks agree, which are never aborted.
_channels: set[str] = set()


class PeerFailed(RuntimeError):  # noqa: N818
    """Raised in place of a collective that another rank did not join; never seen by the user."""


class Rescue:
    """Watches over the collectives of some ranks' steps."""

    def __init__(self, group: Any, side: Any, device: torch.device, timeout: float) -> None:
        self._rank = dist.get_rank(group)
        self._device = device
        self._timeout = timeout
        _channels.add(side.group_name)
        whole = c10d._world.pg_map[group or dist.group.WORLD][1]
        self._store = dist.PrefixStore(f"memfit/{side.group_name}", whole)
        self._ranks = set(dist.get_process_group_ranks(group or dist.group.WORLD))
        # Number of the current attempt, which is the same on all ranks.
        self._attempts = 0
        self._key: str | None = None
        # Set if a collective was abandoned, or left to others, since the groups were last repaired.
        self.broken = False
        # Set if a rank waited for a collective inside a micro-batch.
        self.met = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        # The thread that runs the step, and a flag that is set inside a micro-batch.
        self._here = 0
        self._inside = False

    # ---------------------------------------------------------------------------------------- reporting

    def begin(self) -> None:
        """Begin an attempt at a window, on all ranks."""
        self._attempts += 1
        self._key = str(self._attempts)

    def leave(self, surely: bool = True) -> None:
        """Report that this rank leaves the others: `surely` in a collective, or possibly."""
        self.broken = self.broken or surely
        if self._key is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set(self._key, f"{'left' if surely else 'failed'} {self._rank}")

    def wait_for_message(self, work: Any) -> None:
        """Wait for the message exchange between ranks. A rank that waits long reports this to those that wait
        elsewhere.
        """
        assert _wait is not None
        try:
            _wait(work, _REPORT_AFTER)
            return
        except RuntimeError:
            if work.is_completed():
                raise
        if self._key is not None and not self._store.check([self._key]):
            self._store.set(self._key, f"waits {self._rank}")
        _wait(work)

    def _report(self) -> tuple[str, int] | None:
        """Return another rank's report: "left" (others wait in a collective), "failed" (others may wait) or
        "waits" (for the ranks to agree), and its rank.
        """
        with contextlib.suppress(RuntimeError):
            if self._key is not None and self._store.check([self._key]):
                how, rank = self._store.get(self._key).decode().split()
                return (how, int(rank)) if int(rank) != self._rank else None
        return None

    # ------------------------------------------------------------------------------------ abandoning

    @contextlib.contextmanager
    def watching(self, inside: bool) -> Iterator[None]:
        """Return a context in which waiting for a collective ends when another rank has failed; `inside` a
        micro-batch, or between them.
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
        """`True` if waiting for a collective means waiting for other processes only."""
        return self._device.type == "cpu"

    @property
    def looks(self) -> bool:
        """`True` if a collective waited for on this thread belongs to a step."""
        return self._polls and threading.get_ident() == self._here

    def wait(self, work: Any) -> Any:
        """Wait for a collective."""
        assert _wait is not None
        self.met = self.met or self._inside
        waited = 0.0
        while True:
            try:
                return _wait(work, _POLL_INTERVAL)
            except RuntimeError:
                if work.is_completed():
                    raise
            waited += _POLL_INTERVAL.total_seconds()
            report = self._report()
            if report is not None and (
                report[0] != "waits" or waited > min(_GRACE_SECONDS, self._timeout / 4)
            ):
                self.broken = True
                raise PeerFailed(f"rank {report[1]} does not join {_name(work)}, which this rank waits for")

    def watch(self) -> None:
        """Start a thread that watches this rank's collectives, if the host also waits for the GPU."""
        if self._thread is None and not self._polls:
            self._thread = threading.Thread(target=self._watch, name="memfit-rescue", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        seen = 0
        # Once a second.
        while not self._closed.wait(1.0):
            report = self._report() if self in _rescues else None
            how = report[0] if report is not None else "waits"
            seen = 0 if how == "waits" else seen + 1
            # A rank that is not stuck gets to where the ranks agree by itself.
            if seen >= (_REPORT_AFTER.total_seconds() if how == "left" else _GRACE_SECONDS):
                self.broken = self.met = True
                self.abort()
                seen = 0

    def gave_up(self, error: Exception) -> bool:
        """Return `True` if an error only means that a collective was abandoned."""
        return isinstance(error, PeerFailed) or (self.broken and isinstance(error, dist.DistError))

    # ---------------------------------------------------------------------------------------- repairing

    def _groups(self) -> list[Any]:
        """Return the groups of these ranks, in the order in which all of them created the groups."""
        return [
            group
            for group, name in c10d._world.pg_names.items()
            if name not in _channels and set(dist.get_process_group_ranks(group)) <= self._ranks
        ]

    def abort(self) -> None:
        """Abort all collectives in progress."""
        for group in self._groups():
            # Gloo of older versions of PyTorch has nothing to abort.
            with contextlib.suppress(RuntimeError, AttributeError):
                group._get_backend(self._device).abort()

    def mend(self) -> None:
        """Give the groups new connections, once all ranks are here."""
        self.abort()
        for group in self._groups():
            mended = _mended.get(group, 0)
            if mended == len(_BACKEND_NUMBERS):
                raise RuntimeError(
                    f"a collective had to be aborted for the {mended + 1}th time, and PyTorch allows no "
                    "further repair of a process group\n"
                    "hint: memory keeps running out inside collectives; a smaller `micro_batch` avoids that"
                )
            _mended[group] = mended + 1
            self._renew(group, mended)
        self.broken = False

    def _renew(self, group: Any, mended: int) -> None:
        try:
            old = group._get_backend(self._device)
        except RuntimeError:
            # The group is for another kind of device.
            return
        store = dist.PrefixStore(f"memfit/{mended}/", c10d._world.pg_map[group][1])
        new = _like(old, store)
        if new is None:
            raise RuntimeError(
                "a collective had to be aborted, and memfit cannot repair a process group of type "
                f"{type(old).__name__}\n"
                "hint: gloo and NCCL are supported"
            )
        name, description = group.group_name, group.group_desc
        number = dist.ProcessGroup.BackendType(_BACKEND_NUMBERS[mended])
        for kind in group._device_types:
            if group._get_backend(kind) is old:
                group._register_backend(kind, number, new)
        # The backend stores the group's name.
        group._set_group_name(name)
        group._set_group_desc(description)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._key = None


def _like(old: Any, store: Any) -> Any:
    """Create new connections among the same ranks."""
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
    """Return the name of a collective."""
    with contextlib.suppress(Exception):
        return f"a collective ({work._get_op_type().name.lower()})"
    return "a collective"


def _waits(work: Any, *limit: Any, **keywords: Any) -> Any:
    """Replaces `Work.wait`."""
    assert _wait is not None
    if limit or keywords or not _rescues or not _rescues[-1].looks:
        return _wait(work, *limit, **keywords)
    return _rescues[-1].wait(work)


def stand_in_front() -> Callable[[], None]:
    """Replace `Work.wait`, so that waits are watched. Returns a function that undoes this."""
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
