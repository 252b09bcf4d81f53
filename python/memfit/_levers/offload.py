"""`activation-offload`: what the forward keeps for the backward waits in the host's memory.

Copies run on a stream of their own, beside the computing one, into pinned memory: out while the forward goes
on, and back one tensor ahead of the backward. Blocks on the card belong to the computing stream throughout,
and are let go or used only after an event of the copying one, so the allocator needs to be told nothing. What
a compiled module keeps is copied once its graph is through.
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

# Smaller tensors are not worth a copy.
LEAST = 1 << 20
# Copies out that may be under way before the computing stream waits for the oldest.
AHEAD = 4
# A piece is copied with the tensor that it lies in where that is no larger than so many times the piece.
_ROOM = 4
# Tensors that are remembered before those that are gone are sorted out.
_KNOWN = 256


@lever("activation-offload", Stage.MODEL, 140)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Offload what modules keep: `value` is a list of their names, "blocks" for all repeated ones, or
    "all".
    """
    if value in ("all", True):
        chosen: list[nn.Module] = target.models()
    else:
        found = blocks(target.model) if value == "blocks" else value
        if not found:
            raise CannotApply(name, "the model has no repeated blocks; name the modules, or `all`")
        chosen = modules(target, name, found)
    if target.place().type != "cuda":
        target.note(
            "activations are in the host's memory already, so offloading them does nothing on this device"
        )
        return lambda: None
    for module in chosen:
        if module._compiled_call_impl is None and _is_compiled_around(target, module):
            raise CannotApply(
                name,
                "what a compiled graph keeps leaves it as a whole: compile these modules one by one, or offload `all`",
            )
    mover = Mover(target.place())

    known = {id(each) for each in (*target.models(), *target.model.modules())}

    def around(module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # A copy of the model has weights of its own.
        fixed = places_of(target.model if id(module) in known else module)
        with saved_tensors_hooks(lambda tensor: mover.out(tensor, fixed), mover.back):
            return forward(*args, **kwargs)

    # A compiled graph has fixed strides, which it wants back.
    mover.exact = any(module._compiled_call_impl is not None for module in chosen)
    return together([mover.settle, *[wrap_call(module, around) for module in chosen]])


def _is_compiled_around(target: Target, module: nn.Module) -> bool:
    """Whether a module that it is a part of was compiled."""
    return any(
        each is not module
        and each._compiled_call_impl is not None
        and any(module is part for part in each.modules())
        for each in (*target.models(), *target.model.modules())
    )


class _Away:
    """A tensor that waits on the host."""

    __slots__ = ("__weakref__", "again", "before", "copy", "event", "here")

    def __init__(self, copy: torch.Tensor, event: Any, before: _Away | None) -> None:
        self.copy = copy
        self.event = event
        # The one that went out just before: the backward wants it next.
        self.before = before
        self.here: tuple[torch.Tensor, Any] | None = None
        # Where it was last: several operations may have saved it.
        self.again: StorageWeakRef | None = None


class _View:
    """A tensor that lies within one that waits on the host, gaps and all."""

    __slots__ = ("of", "offset", "shape", "stride")

    def __init__(self, of: _Away, tensor: torch.Tensor) -> None:
        self.of = of
        self.shape, self.stride, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()


class Mover:
    """Moves saved tensors to the host and back."""

    def __init__(self, device: torch.device) -> None:
        # Whether a piece of a larger tensor has to come back as it lay there.
        self.exact = False
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # What is being copied out: each tensor is held until its copy is done.
        self._leaving: deque[tuple[torch.Tensor, Any]] = deque()
        self._last: _Away | None = None
        # Tensors that several operations save are copied once.
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, _Away]] = {}

    def out(self, tensor: torch.Tensor, fixed: set[int]) -> Any:
        """What is kept instead of a tensor."""
        if tensor.device.type != "cuda" or type(tensor) is not torch.Tensor or not is_plain(tensor):
            return tensor
        if tensor.nbytes < LEAST:
            return tensor
        storage = tensor.untyped_storage()
        # An expanded tensor's memory is smaller than itself, and stays.
        if storage.data_ptr() in fixed or storage.nbytes() < tensor.nbytes:
            return tensor
        if self.exact and not _dense(tensor):
            if storage.nbytes() > _ROOM * tensor.nbytes:
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
        # A piece of a larger tensor comes back without the gaps.
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
        while len(self._leaving) > AHEAD:
            self._let_go(computing)
        away = _Away(copy, event, self._last)
        self._last = away
        if len(self._known) > _KNOWN:
            self._known = {each: pair for each, pair in self._known.items() if not pair[0].expired()}
        self._known[key] = (StorageWeakRef(storage), away)
        return away

    def back(self, kept: Any) -> torch.Tensor:
        """The tensor, on the card again."""
        if isinstance(kept, _View):
            return self.back(kept.of).as_strided(kept.shape, kept.stride, kept.offset)
        if not isinstance(kept, _Away):
            return kept  # type: ignore[no-any-return]
        computing = torch.cuda.current_stream(self._device)
        # The forward is over: nothing leaves any more, and the next one begins a chain of its own.
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
        """Nothing is under way any more."""
        while self._leaving:
            self._let_go(torch.cuda.current_stream(self._device))
        self._last = None
        self._known.clear()

    def _fetch(self, away: _Away, computing: Any) -> tuple[torch.Tensor, Any]:
        # Made on the computing stream, whose earlier work may still be using the block.
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
    """Whether a tensor is numbers in one piece of memory, and nothing else: neither sparse, nor in codes, nor
    of a class of its own.
    """
    kinds = (torch.Tensor, nn.Parameter)
    return type(tensor) in kinds and tensor.layout == torch.strided and not tensor.is_quantized


def places_of(module: nn.Module) -> set[int]:
    """Where a module's parameters and buffers lie."""
    held = (*module.parameters(), *module.buffers())
    return {each.untyped_storage().data_ptr() for each in held if is_plain(each)}


def _still_here(away: _Away) -> torch.Tensor | None:
    """What came back for another operation that saved it, where that still holds it."""
    storage = torch.UntypedStorage._new_with_weak_ptr(away.again.cdata) if away.again is not None else None
    if storage is None:
        return None
    known = away.copy
    return torch.empty(0, dtype=known.dtype, device=storage.device).set_(
        storage, 0, known.shape, known.stride()
    )


def _dense(tensor: torch.Tensor) -> bool:
    """Whether each number has a place of its own, and no place is empty."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
