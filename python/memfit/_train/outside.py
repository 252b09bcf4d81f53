"""State outside the model's parameters and buffers that a forward pass writes to.

Averaged and momentum encoders, queues, hidden states of truncated backpropagation, generators, and counters
in Python. Writes are detected in the first forward pass; what cannot be detected is named with `modules=` and
`state=`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .modes import Mode
from .operations import written_by
from .randomness import generator_state, is_default_generator, is_generator, set_generator_state
from .slots import CONTAINERS, Advance, Kept, Slot, attributes_of
from .surroundings import Changes, around, around_modules, variables_of

# PyTorch's graph task id outside a backward pass.
_NO_BACKWARD_ID = -1
# First window that checks all attributes again; the interval then doubles each time.
_FULL_CHECK_WINDOW = 64
# Above this size, a storage's copy is kept in host memory.
_MAX_DEVICE_BYTES = 64 << 20


class Writes(Mode):
    """Detects writes of a forward pass to existing memory, and copies the memory before the write."""

    def __init__(self, outside: Outside, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._outside = outside
        # Memory that is saved elsewhere, or allocated by the forward pass itself.
        self._own = {_memory(each) for tensor in known for each in _plain_tensors(tensor)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.look(func, args, kwargs)
        returned = func(*args, **kwargs)
        for value in returned if isinstance(returned, (list, tuple)) else (returned,):
            if isinstance(value, torch.Tensor) and not _is_alias(func):
                self._own.update(map(_memory, _plain_tensors(value)))
        return returned

    def look(self, func: Any, args: Any, kwargs: Any) -> None:
        """Detect the tensors an operation is about to write to, and the generator it uses."""
        for tensor in written_by(func, args, kwargs):
            if type(tensor) in (torch.Tensor, nn.Parameter) and _memory(tensor) not in self._own:
                self._outside.writes_to(tensor)
        generator = kwargs.get("generator")
        if isinstance(generator, torch.Generator):
            self._outside.draws_from(generator)


class _SavedState:
    """Values saved at one point in time."""

    def __init__(self) -> None:
        self.copies: dict[int, torch.UntypedStorage] = {}
        self.generators: dict[int, Any] = {}
        self.objects: list[Any] = []
        self.kept: list[Kept] = []


class Outside:
    """State outside a model's parameters and buffers, saved for each window."""

    def __init__(
        self, model: nn.Module, modules: Sequence[nn.Module], state: Sequence[Any], loss: Any
    ) -> None:
        self._model = model
        self._modules = [model, *modules]
        self._loss = loss
        # Storages that a forward pass was seen to write to, each with a tensor that uses it.
        self._tensors: dict[int, torch.Tensor] = {}
        self._named: dict[int, str] = {}
        # Storages whose first write was not in a backward pass (hooks of DistributedDataParallel write
        # there).
        self._of_forward: set[int] = set()
        self._generators: dict[int, Any] = {}
        self._objects: list[Any] = []
        self._slots: list[Slot] = []
        self._saved = _SavedState()
        self._changing: set[str] = set()
        self._windows = 0
        for each in state:
            self._name(each)

    def _name(self, each: Any) -> None:
        if isinstance(each, torch.Tensor):
            self.writes_to(each)
        elif is_generator(each):
            self.draws_from(each)
        elif isinstance(each, CONTAINERS):
            self._slots.append(Slot("state", lambda: each, lambda _: None))
        elif hasattr(each, "state_dict") and hasattr(each, "load_state_dict"):
            self._objects.append(each)
        elif hasattr(each, "__dict__"):
            self._slots += attributes_of("state", each)
        else:
            raise TypeError(
                f"`state=` has a {type(each).__name__}, which cannot be restored after a failure\n"
                "hint: it accepts tensors, generators, lists, dictionaries, and objects with attributes or "
                "with `state_dict` and `load_state_dict`"
            )

    # --------------------------------------------------------------------------------------- detection

    def writes_to(self, tensor: torch.Tensor) -> None:
        """Save a tensor before the forward pass writes to it for the first time."""
        place = _memory(tensor)
        if place not in self._tensors:
            # Copy first, as this may run out of memory.
            self._saved.copies[place] = _copy(tensor)
            self._named[place] = self._name_of(tensor)
            self._tensors[place] = tensor
            if torch._C._current_graph_task_id() == _NO_BACKWARD_ID:
                self._of_forward.add(place)

    def draws_from(self, generator: Any) -> None:
        """Save a generator's state before the forward pass draws from it for the first time."""
        if is_default_generator(generator) or id(generator) in self._generators:
            return
        self._generators[id(generator)] = generator
        self._saved.generators[id(generator)] = generator_state(generator)

    def watch(self, known: Iterable[torch.Tensor]) -> Writes:
        """Return a mode that detects writes to tensors other than the known ones."""
        return Writes(self, known)

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that a forward pass was seen to write to."""
        return list(self._tensors.values())

    def _name_of(self, tensor: torch.Tensor) -> str:
        place = _memory(tensor)
        for module in self._modules:
            for name, each in (*module.named_parameters(), *module.named_buffers()):
                if _memory(each) == place:
                    return name
        for slot in variables_of(self._loss):
            name, value = slot.name, slot.get()
            if isinstance(value, torch.Tensor) and _memory(value) == place:
                return name
            if isinstance(value, nn.Module):
                for inner, each in (*value.named_parameters(), *value.named_buffers()):
                    if _memory(each) == place:
                        return f"{name}.{inner}"
        return f"a tensor of shape {list(tensor.shape)}"

    # -------------------------------------------------------------------------------- window by window

    def keep(self, everything: bool = False) -> None:
        """Save the current values; with `everything`, those of all attributes."""
        self._windows += not everything
        count = self._windows
        all_of_them = everything or count <= 2 or (count >= _FULL_CHECK_WINDOW and count & (count - 1) == 0)
        known = self._tensors or self._generators or self._objects
        if not (all_of_them or known or self._saved.kept):
            return
        slots = self._places() if all_of_them else self._moving()
        # Free the previous copies first.
        self._saved.copies.clear()
        now = self._saved = _SavedState()
        now.copies = {place: _copy(tensor) for place, tensor in self._tensors.items()}
        now.generators = {place: generator_state(each) for place, each in self._generators.items()}
        now.objects = [copy.deepcopy(each.state_dict()) for each in self._objects]
        now.kept = [Kept(slot) for slot in slots]

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Save and restore state around a comparison; the open window keeps its own saved values."""
        window, self._saved = self._saved, _SavedState()
        try:
            yield
        finally:
            self._saved = window
            # State first detected by the comparison is unchanged since the window began.
            window.copies = {
                place: window.copies[place] if place in window.copies else _copy(tensor)
                for place, tensor in self._tensors.items()
            }
            for place, each in self._generators.items():
                window.generators.setdefault(place, generator_state(each))

    def _places(self) -> list[Slot]:
        slots = list(self._slots)
        for module in self._modules:
            for name, each in module.named_modules():
                slots += attributes_of(name or type(each).__name__, each)
                self._find_generators(vars(each).values())
        self._find_generators(slot.get() for slot in variables_of(self._loss, self._known()))
        return slots + around(self._loss, self._known()) + around_modules(self._modules)

    def _known(self) -> frozenset[int]:
        """Return the identities of modules whose attributes are listed anyway."""
        return frozenset(id(each) for module in self._modules for each in module.modules())

    def changes(self) -> Changes:
        """Return the changes to the variables around the loss function and to the modules' attributes."""
        return Changes(self._loss, self._modules)

    def _find_generators(self, values: Iterable[Any]) -> None:
        for value in values:
            if is_generator(value):
                self.draws_from(value)

    def _moving(self) -> list[Slot]:
        return [kept.slot for kept in self._saved.kept if kept.slot.name in self._changing]

    def restore(self) -> None:
        """Restore all saved values."""
        then = self._saved
        for place, kept in then.copies.items():
            _write(self._tensors[place], kept)
        for place, state in then.generators.items():
            set_generator_state(self._generators[place], state)
        for each, state in zip(self._objects, then.objects, strict=False):
            each.load_state_dict(copy.deepcopy(state))
        for value in then.kept:
            value.restore()

    def prune(self) -> None:
        """Forget storages that their tensors no longer use."""
        for place in [place for place, tensor in self._tensors.items() if _memory(tensor) != place]:
            del self._tensors[place], self._named[place]
            self._saved.copies.pop(place, None)

    def settle(self) -> None:
        """End the window; values that it changed are saved in every window from now on."""
        self._changing |= {kept.slot.name for kept in self._saved.kept if kept.changed()}

    # ---------------------------------------------------------------------------------- comparing

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors that a forward pass was seen to write to, and of tensor attributes, by
        name.
        """
        found = {self._named[place]: tensor.detach().clone() for place, tensor in self._tensors.items()}
        for kept in self._saved.kept:
            if kept.changed():
                found.update(kept.tensors())
        return found

    def unmoved(self) -> bool:
        """Return `True` if the forward pass wrote to a tensor without changing its value."""
        return any(
            _equal_storages(tensor.untyped_storage(), self._saved.copies[place])
            for place, tensor in self._tensors.items()
            if place in self._of_forward
        )

    def advance(self, names: frozenset[str], to: Advance) -> None:
        """Count up the named numbers, scale the named averages, and make the named lists longer."""
        for kept in self._saved.kept:
            kept.advance(names, to)

    def numbers(self) -> dict[str, Any]:
        """Return the plain values in Python that changed since `keep` by name, and lengths of containers."""
        found: dict[str, Any] = {}
        for kept in self._saved.kept:
            if kept.changed():
                found.update(kept.numbers())
        return found


def _is_alias(func: Any) -> bool:
    return any(each.alias_info is not None for each in func._schema.returns)


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor, and those that a tensor subclass wraps: the values of a jagged tensor."""
    yield tensor
    if type(tensor) not in (torch.Tensor, nn.Parameter) and hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            # A distributed tensor lists its mesh as well.
            if isinstance(inner, torch.Tensor):
                yield from _plain_tensors(inner)


def _memory(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _copy(tensor: torch.Tensor) -> torch.UntypedStorage:
    storage = tensor.untyped_storage()
    if storage.device.type == "cpu":
        return storage.clone()
    if storage.nbytes() <= _MAX_DEVICE_BYTES:
        with contextlib.suppress(torch.OutOfMemoryError):
            return storage.clone()
    return storage.cpu()


def _write(tensor: torch.Tensor, kept: torch.UntypedStorage) -> None:
    storage = tensor.untyped_storage()
    if storage.nbytes() == kept.nbytes():
        storage.copy_(kept)


def _equal_storages(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    if one.nbytes() != other.nbytes():
        return False
    bytes_of = [torch.empty(0, dtype=torch.uint8, device=each.device).set_(each) for each in (one, other)]
    return bool(torch.equal(bytes_of[0], bytes_of[1].to(one.device)))
