"""Lists and frees tensors that hold device memory."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import types
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._errors import chained
from .._levers.variables import variables


@dataclass(frozen=True)
class Holder:
    """A tensor that holds memory, and the name that leads to it."""

    bytes: int
    name: str
    where: str
    shape: tuple[int, ...]
    dtype: str
    device: str

    def __str__(self) -> str:
        return (
            f"{_core.format_size(self.bytes):>14}  {self.name}  {list(self.shape)} {self.dtype}  {self.where}"
        )


def holders(device: torch.device | str | None = None, *, least: int = 0) -> list[Holder]:
    """List the tensors that hold device memory, the largest first, each with a name that leads to it.

    Each storage is counted once, under the first of its tensors that has a name. Tensors in host memory are
    only listed with `device="cpu"`.
    """
    gc.collect()
    wanted = torch.device(device) if device is not None else None
    found: dict[int, tuple[torch.Tensor, str, str]] = {}
    names = _names()
    for value in gc.get_objects():
        if not _is_tensor(value):
            continue
        place = value.device
        if (wanted is None and place.type == "cpu") or (wanted is not None and place.type != wanted.type):
            continue
        if wanted is not None and wanted.index is not None and place.index != wanted.index:
            continue
        with contextlib.suppress(Exception):
            storage = value.untyped_storage()
            if storage.nbytes() < max(least, 1):
                continue
            name, where = names.get(id(value), ("", ""))
            if not name:
                name, where = _by_referrer(value, names)
            known = found.get(storage.data_ptr())
            if known is None or (not known[1] and name):
                found[storage.data_ptr()] = (value, name, where)
    listed = [
        Holder(
            tensor.untyped_storage().nbytes(),
            name or "(unnamed)",
            where,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
        )
        for tensor, name, where in found.values()
    ]
    return sorted(listed, key=lambda holder: (-holder.bytes, holder.name))


def release() -> int:
    """Free what a failed cell or an ended phase left behind; return the bytes freed on the devices.

    Drops the last exception with its frames, a notebook's stored outputs, garbage, and the caching
    allocator's unused memory. Memory that your own variables hold stays: `memfit.holders()` lists it.
    """
    before = _free()
    for name in ("last_value", "last_exc"):
        error = getattr(sys, name, None)
        if error is not None:
            _clear(error)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    _forget_notebook()
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return max(_free() - before, 0)


def _clear(error: BaseException) -> None:
    """Clear the frames of an exception and of those that led to it."""
    for following in chained(error):
        with contextlib.suppress(Exception):
            trace = following.__traceback__
            traceback.clear_frames(trace)
            while trace is not None:
                # A notebook's traceback read the frame's variables; that copy keeps what the frame dropped.
                variables(trace.tb_frame)
                trace = trace.tb_next
            following.__traceback__ = None


def _free() -> int:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return 0
    return sum(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))


def _forget_notebook() -> None:
    """Clear the cell outputs that a notebook keeps under `_`, `__`, `_3` and in `Out`."""
    main = sys.modules.get("IPython")
    shell = main.get_ipython() if main is not None else None
    if shell is None:
        return
    space: dict[str, Any] = shell.user_ns
    kept = space.get("Out")
    if isinstance(kept, dict):
        kept.clear()
    hidden: dict[str, Any] = getattr(shell, "user_ns_hidden", {})
    for names in (space, hidden):
        for name in [name for name in names if name.startswith("_") and name.lstrip("_").isdigit()]:
            del names[name]
        # The shell's own list of the names that it made has the last outputs as well.
        names.update({name: "" for name in ("_", "__", "___") if name in names})
    hook = getattr(shell, "displayhook", None)
    if hook is not None:
        with contextlib.suppress(Exception):
            hook.flush()


def _is_tensor(value: Any) -> bool:
    # `isinstance` reads attributes of the object, which can run arbitrary code in a lazy object.
    with contextlib.suppress(Exception):
        return issubclass(type(value), torch.Tensor)
    return False


def _names() -> dict[int, tuple[str, str]]:
    """Return names of tensors by identity: parameters and buffers of modules, optimizer state, variables."""
    names: dict[int, tuple[str, str]] = {}

    def call(value: Any, name: str, where: str) -> None:
        if _is_tensor(value):
            names.setdefault(id(value), (name, where))
            if value.is_leaf and value.grad is not None:
                names.setdefault(id(value.grad), (f"{name}.grad", where))
        elif isinstance(value, torch.nn.Module):
            for inner, tensor in (*value.named_parameters(), *value.named_buffers()):
                call(tensor, f"{name}.{inner}", where)
        elif isinstance(value, torch.optim.Optimizer):
            for index, state in enumerate(list(value.state.values())):
                for key, tensor in state.items():
                    if _is_tensor(tensor):
                        names.setdefault(id(tensor), (f"{name}.state[{index}][{key!r}]", where))
        elif isinstance(value, dict):
            for key, entry in list(value.items())[:10_000]:
                if _is_tensor(entry):
                    names.setdefault(id(entry), (f"{name}[{key!r}]", where))
        elif isinstance(value, (list, tuple)):
            for index, entry in enumerate(value[:10_000]):
                if _is_tensor(entry):
                    names.setdefault(id(entry), (f"{name}[{index}]", where))

    for frame in frames():
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        for name, value in variables(frame).items():
            call(value, name, where)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # User code only; variables of libraries are of no use as names.
        library = file is None or "site-packages" in file or "/lib/python" in file
        if library and getattr(module, "__name__", "") != "__main__":
            continue
        for name, value in list(vars(module).items()):
            call(value, name, str(file or module.__name__))
    return names


def frames() -> list[types.FrameType]:
    """Return the frames of all threads, without memfit's own, and those of the last exception."""
    frames: list[types.FrameType] = []
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            if "memfit" not in frame.f_code.co_filename.rsplit("/", 2)[0].rsplit("/", 1)[-1]:
                frames.append(frame)
            frame = frame.f_back
    error = getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _by_referrer(value: Any, names: dict[int, tuple[str, str]]) -> tuple[str, str]:
    """Name a tensor after the object that refers to it."""
    for holder in gc.get_referrers(value):
        if isinstance(holder, types.FrameType):
            continue
        if id(holder) in names:
            return f"something in {names[id(holder)][0]}", names[id(holder)][1]
        if isinstance(holder, types.CellType):
            return "a variable of a closure", ""
        kind = type(holder)
        if kind not in (list, dict, tuple) and kind.__module__ not in ("builtins", __name__):
            return f"an object of {kind.__module__}.{kind.__qualname__}", ""
    return "", ""
