"""`activation-offload`: saved activations are offloaded to host memory until the backward pass.

Copies run on their own stream, parallel to computing, into pinned memory: out during the forward pass, and
back one tensor ahead of the backward pass. All GPU memory belongs to the computing stream, and is freed or
used only after an event of the copy stream, so `record_stream` is not needed. Activations of a compiled
module are copied once its graph has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .blocks import blocks
from .registry import Stage, lever
from .target import CannotApply, Target, Undo, modules
from .wrapping import together, wrap_call

# Minimum size of a tensor that is offloaded.
MIN_BYTES = 1 << 20
# Maximum number of copies to the host in flight before the computing stream waits for the oldest.
MAX_COPIES_IN_FLIGHT = 4
# A view is copied with its whole storage if that is at most this many times as large.
_MAX_STORAGE_RATIO = 4
# Number of known tensors above which freed ones are removed.
_MAX_KNOWN = 256


@lever("activation-offload", Stage.MODEL, 140)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Offload the activations of modules: `value` is a list of their names, "blocks" for all repeated ones,
    or "all".
    """
    if value in ("all", True):
        chosen: list[nn.Module] = target.models()
    else:
        found = blocks(target.model) if value == "blocks" else value
        if not found:
            raise CannotApply(name, "the model has no repeated blocks; name the modules, or `all`")
        chosen = modules(target, name, found)
    if target.place().type != "cuda":
        target.note("activations are in host memory already, so offloading has no effect on this device")
        return lambda: None
    for module in chosen:
        if module._compiled_call_impl is None and _is_compiled_around(target, module):
            raise CannotApply(
                name,
                "activations of a compiled graph are saved only after the whole graph has run: compile these "
                "modules separately, or offload `all`",
            )
    mover = Mover(target.place())

    known = {id(each) for each in (*target.models(), *target.model.modules())}

    def around(module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # A copy of the model has its own weights.
        fixed = places_of(target.model if id(module) in known else module)
        with saved_tensors_hooks(lambda tensor: mover.out(tensor, fixed), mover.back):
            return forward(*args, **kwargs)

    # A compiled graph expects saved tensors with their original strides.
    mover.exact = any(module._compiled_call_impl is not None for module in chosen)
    return together([mover.settle, *[wrap_call(module, around) for module in chosen]])


def _is_compiled_around(target: Target, module: nn.Module) -> bool:
    """Return `True` if a module that contains this one was compiled."""
    return any(
        each is not module
        and each._compiled_call_impl is not None
        and any(module is part for part in each.modules())
        for each in (*target.models(), *target.model.modules())
    )


class _Away:
    """A tensor in host memory."""

    __slots__ = ("__weakref__", "again", "before", "copy", "event", "here")

    def __init__(self, copy: torch.Tensor, event: Any, before: _Away | None) -> None:
        self.copy = copy
        self.event = event
        # The tensor copied out just before: the backward pass needs it next.
        self.before = before
        self.here: tuple[torch.Tensor, Any] | None = None
        # Its last GPU storage: several operations may have saved the same tensor.
        self.again: StorageWeakRef | None = None


class _View:
    """A view into a tensor in host memory, with its original strides."""

    __slots__ = ("of", "offset", "shape", "stride")

    def __init__(self, of: _Away, tensor: torch.Tensor) -> None:
        self.of = of
        self.shape, self.stride, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()


class Mover:
    """Copies saved tensors to the host and back."""

    def __init__(self, device: torch.device) -> None:
        # Restore non-contiguous tensors with their original strides.
        self.exact = False
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # Tensors being copied out; each is kept alive until its copy is complete.
        self._leaving: deque[tuple[torch.Tensor, Any]] = deque()
        self._last: _Away | None = None
        # Tensors saved by several operations are copied once.
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, _Away]] = {}

    def out(self, tensor: torch.Tensor, fixed: set[int]) -> Any:
        """Start copying a tensor to the host, and return what is saved in its place."""
        if tensor.device.type != "cuda" or type(tensor) is not torch.Tensor or not is_plain(tensor):
            return tensor
        if tensor.nbytes < MIN_BYTES:
            return tensor
        storage = tensor.untyped_storage()
        # Expanded tensors stay: their storage is smaller than their size.
        if storage.data_ptr() in fixed or storage.nbytes() < tensor.nbytes:
            return tensor
        if self.exact and not _dense(tensor):
            if storage.nbytes() > _MAX_STORAGE_RATIO * tensor.nbytes:
                return tensor
            numbers = storage.nbytes() // tensor.element_size()
            whole = torch.as_strided(tensor.detach(), (numbers,), (1,), 0)
            away = self.out(whole, fixed)
            return _View(away, tensor) if isinstance(away, _Away) else tensor
        key = (
            storage.data_ptr(),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor._version,
        )
        known = self._known.get(key)
        if known is not None and not known[0].expired():
            return known[1]
        computing = torch.cuda.current_stream(self._device)
        # A non-contiguous tensor is restored as contiguous.
        copy = (
            torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)
            if _dense(tensor)
            else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        )
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            copy.copy_(tensor, non_blocking=True)
            event = self._stream.record_event()
        self._leaving.append((tensor, event))
        while len(self._leaving) > MAX_COPIES_IN_FLIGHT:
            self._let_go(computing)
        away = _Away(copy, event, self._last)
        self._last = away
        if len(self._known) > _MAX_KNOWN:
            self._known = {each: pair for each, pair in self._known.items() if not pair[0].expired()}
        self._known[key] = (StorageWeakRef(storage), away)
        return away

    def back(self, kept: Any) -> torch.Tensor:
        """Return the tensor on the GPU."""
        if isinstance(kept, _View):
            return self.back(kept.of).as_strided(kept.shape, kept.stride, kept.offset)
        if not isinstance(kept, _Away):
            return kept  # type: ignore[no-any-return]
        computing = torch.cuda.current_stream(self._device)
        # The forward pass is over: all copies out complete, and the next forward pass starts a new chain.
        while self._leaving:
            self._let_go(computing)
        self._last = None
        self._known.clear()
        still_here = _still_here(kept)
        if still_here is not None:
            return still_here
        tensor, event = kept.here or self._fetch(kept, computing)
        kept.here, kept.again = None, StorageWeakRef(tensor.untyped_storage())
        if kept.before is not None and kept.before.here is None:
            kept.before.here = self._fetch(kept.before, computing)
        kept.before = None
        computing.wait_event(event)
        return tensor

    def settle(self) -> None:
        """Complete all copies out."""
        while self._leaving:
            self._let_go(torch.cuda.current_stream(self._device))
        self._last = None
        self._known.clear()

    def _fetch(self, away: _Away, computing: Any) -> tuple[torch.Tensor, Any]:
        # Allocated on the computing stream, whose earlier work may still use the block.
        tensor = torch.empty_strided(
            away.copy.shape, away.copy.stride(), dtype=away.copy.dtype, device=self._device
        )
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            tensor.copy_(away.copy, non_blocking=True)
            return tensor, self._stream.record_event()

    def _let_go(self, computing: Any) -> None:
        _, event = self._leaving.popleft()
        computing.wait_event(event)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return `True` for a plain dense tensor: not sparse, not quantised, and of no subclass."""
    kinds = (torch.Tensor, nn.Parameter)
    return type(tensor) in kinds and tensor.layout == torch.strided and not tensor.is_quantized


def places_of(module: nn.Module) -> set[int]:
    """Return the addresses of a module's parameters and buffers."""
    held = (*module.parameters(), *module.buffers())
    return {each.untyped_storage().data_ptr() for each in held if is_plain(each)}


def _still_here(away: _Away) -> torch.Tensor | None:
    """Return the GPU tensor restored for another operation, if it still exists."""
    storage = torch.UntypedStorage._new_with_weak_ptr(away.again.cdata) if away.again is not None else None
    if storage is None:
        return None
    known = away.copy
    return torch.empty(0, dtype=known.dtype, device=storage.device).set_(
        storage, 0, known.shape, known.stride()
    )


def _dense(tensor: torch.Tensor) -> bool:
    """Return `True` if a tensor's elements fill a contiguous range of memory."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
