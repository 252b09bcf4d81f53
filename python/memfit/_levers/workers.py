"""`loader-workers`: the number of worker processes, prefetched batches, and pinned memory."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, table, take_out


@lever("loader-workers", Stage.DATA, 20)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Change the loader: `value` is a number of processes, or a table (or a text such as
    `workers=4,pin=true`) of `workers`, `prefetch`, `pin` and `persistent`.
    """
    wanted = table(value, "workers")
    changes: dict[str, Any] = {}
    if "workers" in wanted:
        workers = wanted["workers"]
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise CannotApply(name, f"`workers` must be a number of processes, got {workers!r}")
        changes["num_workers"] = workers
    if "pin" in wanted:
        changes["pin_memory"] = bool(wanted["pin"])
    if wanted.get("prefetch"):
        changes["prefetch_factor"] = int(wanted["prefetch"])
    if "persistent" in wanted:
        changes["persistent_workers"] = bool(wanted["persistent"])

    changed = Changed()

    def reload(loader: Any) -> Any:
        return again(loader, changed, **changes) if isinstance(loader, DataLoader) else loader

    def undo() -> None:
        take_out(target.reloads, reload)
        changed.undo()

    target.reloads.append(reload)
    return undo


class Changed:
    """Loaders that were changed in place, with their previous settings."""

    def __init__(self) -> None:
        self._before: list[tuple[DataLoader[Any], str, Any]] = []

    def set(self, loader: DataLoader[Any], key: str, value: Any) -> None:
        """Set an attribute that a loader does not allow to be set after its creation."""
        self._before.append((loader, key, loader.__dict__[key]))
        loader.__dict__[key] = value

    def undo(self) -> None:
        """Restore all loaders."""
        while self._before:
            loader, key, value = self._before.pop()
            loader.__dict__[key] = value


def again(loader: DataLoader[Any], changed: Changed, **changes: Any) -> DataLoader[Any]:
    """Return the loader with other settings: same data, same order, same collation."""
    settings: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    for key in ("pin_memory_device", "in_order"):
        if hasattr(loader, key) and getattr(loader, key) not in ("", None):
            settings[key] = getattr(loader, key)
    # A batch sampler determines the batch size; so does a data set that yields whole batches.
    if changes.get("batch_sampler") is not None:
        pass
    elif isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        settings.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
        if not isinstance(loader.dataset, IterableDataset):
            settings["sampler"] = loader.sampler
    else:
        settings["batch_sampler"] = loader.batch_sampler
    settings.update(changes)
    if settings["num_workers"] == 0:
        settings.update(prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)
        settings["timeout"] = 0
    elif settings["prefetch_factor"] is None:
        # torch's default, which a loader without workers does not have.
        settings["prefetch_factor"] = 2
    if type(loader) is DataLoader:
        return DataLoader(loader.dataset, **settings)
    return _like(loader, settings, changed)


def _like(loader: DataLoader[Any], settings: dict[str, Any], changed: Changed) -> DataLoader[Any]:
    """Change a loader in place if its class is not torch's own, since its constructor may differ."""
    for key in ("num_workers", "prefetch_factor", "pin_memory", "batch_sampler"):
        if key in settings and loader.__dict__.get(key) is not settings[key]:
            changed.set(loader, key, settings[key])
    if loader.num_workers == 0 and loader.timeout:
        changed.set(loader, "timeout", 0)
    return loader
