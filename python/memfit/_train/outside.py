"""State outside the model's parameters and buffers that a forward writes to.

Average and momentum encoders, queues, hidden states of truncated backpropagation, own generators and counters
in Python. What a forward writes to is seen when it first runs; what cannot be seen is named with `modules=`
and `state=`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .comparing import written_by
from .randomness import generator_state, is_default_generator, is_generator, set_generator_state
from .slots import CONTAINERS, Kept, Slot, around, attributes_of, variables_of

# What PyTorch answers outside a backward.
_NO_BACKWARD = -1
# The first window in which all attributes are looked at once more; then at twice as many, and so on.
_AGAIN = 64
# Storages together larger than this wait on the host.
_LARGE_BYTES = 64 << 20


class Writes(TorchDispatchMode):  # type: ignore[misc]
    """Sees which memory a forward writes to that was there before it, and keeps a copy from before the
    write.
    """

    def __init__(self, outside: Outside, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._outside = outside
        # Memory that is kept elsewhere, or made by the forward itself.
        self._own = {_memory(tensor) for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.look(func, args, kwargs)
        returned = func(*args, **kwargs)
        for value in returned if isinstance(returned, (list, tuple)) else (returned,):
            if isinstance(value, torch.Tensor) and not _is_alias(func):
                self._own.add(_memory(value))
        return returned

    def look(self, func: Any, args: Any, kwargs: Any) -> None:
        """See what an operation is about to write to, and which generator it draws from."""
        for tensor in written_by(func, args, kwargs):
            if type(tensor) in (torch.Tensor, nn.Parameter) and _memory(tensor) not in self._own:
                self._outside.writes_to(tensor)
        generator = kwargs.get("generator")
        if isinstance(generator, torch.Generator):
            self._outside.draws_from(generator)


class _Moment:
    """Values as they were at one moment."""

    def __init__(self) -> None:
        self.copies: dict[int, torch.UntypedStorage] = {}
        self.generators: dict[int, Any] = {}
        self.objects: list[Any] = []
        self.kept: list[Kept] = []


class Outside:
    """What lies outside a model's parameters and buffers, kept from window to window."""

    def __init__(
        self, model: nn.Module, modules: Sequence[nn.Module], state: Sequence[Any], loss: Any
    ) -> None:
        self._model = model
        self._modules = [model, *modules]
        self._loss = loss
        # Storages that a forward was seen to write to, with a tensor that lies there.
        self._tensors: dict[int, torch.Tensor] = {}
        self._named: dict[int, str] = {}
        # Those that were not first written to in a backward, as by the hooks of DistributedDataParallel.
        self._of_forward: set[int] = set()
        self._generators: dict[int, Any] = {}
        self._objects: list[Any] = []
        self._slots: list[Slot] = []
        self._moment = _Moment()
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
                f"`state=` has a {type(each).__name__}, which cannot be put back after a failure\n"
                "hint: it takes tensors, generators, lists, dictionaries, and objects with attributes or with "
                "`state_dict` and `load_state_dict`"
            )

    # -------------------------------------------------------------------------------------- what is seen

    def writes_to(self, tensor: torch.Tensor) -> None:
        """A forward is about to write to a tensor."""
        place = _memory(tensor)
        if place not in self._tensors:
            # The copy first: there may be no room for it.
            self._moment.copies[place] = _copy(tensor)
            self._named[place] = self._name_of(tensor)
            self._tensors[place] = tensor
            if torch._C._current_graph_task_id() == _NO_BACKWARD:
                self._of_forward.add(place)

    def draws_from(self, generator: Any) -> None:
        """A forward is about to draw from a generator."""
        if is_default_generator(generator) or id(generator) in self._generators:
            return
        self._generators[id(generator)] = generator
        self._moment.generators[id(generator)] = generator_state(generator)

    def watch(self, known: Iterable[torch.Tensor]) -> Writes:
        """Sees what a forward writes to, but for tensors that are known."""
        return Writes(self, known)

    def _name_of(self, tensor: torch.Tensor) -> str:
        place = _memory(tensor)
        for module in self._modules:
            for name, each in (*module.named_parameters(), *module.named_buffers()):
                if _memory(each) == place:
                    return name
        for name, value in variables_of(self._loss):
            if isinstance(value, torch.Tensor) and _memory(value) == place:
                return name
            if isinstance(value, nn.Module):
                for inner, each in (*value.named_parameters(), *value.named_buffers()):
                    if _memory(each) == place:
                        return f"{name}.{inner}"
        return f"a tensor of shape {list(tensor.shape)}"

    # ------------------------------------------------------------------------------------- window by window

    def keep(self, everything: bool = False) -> None:
        """Remember everything as it is now; all attributes too where `everything` is asked for."""
        self._windows += not everything
        count = self._windows
        all_of_them = everything or count <= 2 or (count >= _AGAIN and count & (count - 1) == 0)
        slots = self._places() if all_of_them else self._moving()
        # The copies of before make room first.
        self._moment.copies.clear()
        now = self._moment = _Moment()
        now.copies = {place: _copy(tensor) for place, tensor in self._tensors.items()}
        now.generators = {place: generator_state(each) for place, each in self._generators.items()}
        now.objects = [copy.deepcopy(each.state_dict()) for each in self._objects]
        now.kept = [Kept(slot) for slot in slots]

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Keep and restore what a comparison needs; the open window goes on from where it began."""
        window, self._moment = self._moment, _Moment()
        try:
            yield
        finally:
            self._moment = window
            # What the comparison met first is as the window found it.
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
        self._find_generators(value for _, value in variables_of(self._loss))
        return slots + around(self._loss)

    def _find_generators(self, values: Iterable[Any]) -> None:
        for value in values:
            if is_generator(value):
                self.draws_from(value)

    def _moving(self) -> list[Slot]:
        return [kept.slot for kept in self._moment.kept if kept.slot.name in self._changing]

    def restore(self) -> None:
        """Put everything back."""
        then = self._moment
        for place, kept in then.copies.items():
            _write(self._tensors[place], kept)
        for place, state in then.generators.items():
            set_generator_state(self._generators[place], state)
        for each, state in zip(self._objects, then.objects, strict=False):
            each.load_state_dict(copy.deepcopy(state))
        for value in then.kept:
            value.restore()

    def prune(self) -> None:
        """Forget storages that the tensors seen there have no more."""
        for place in [place for place, tensor in self._tensors.items() if _memory(tensor) != place]:
            del self._tensors[place], self._named[place]
            self._moment.copies.pop(place, None)

    def settle(self) -> None:
        """The window is over: what it changed is kept from now on."""
        self._changing |= {kept.slot.name for kept in self._moment.kept if kept.changed()}

    # --------------------------------------------------------------------------------------- comparing

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of all that a forward was seen to write to, by name; attributes that are tensors among
        it.
        """
        found = {self._named[place]: tensor.detach().clone() for place, tensor in self._tensors.items()}
        for kept in self._moment.kept:
            value = kept.slot.get()
            if isinstance(value, torch.Tensor) and kept.changed():
                found[kept.slot.name] = value.detach().clone()
        return found

    def unmoved(self) -> bool:
        """Whether a forward wrote to a tensor that has the numbers that it had."""
        return any(
            _equal_storages(tensor.untyped_storage(), self._moment.copies[place])
            for place, tensor in self._tensors.items()
            if place in self._of_forward
        )

    def numbers(self) -> dict[str, Any]:
        """What changed in Python since `keep`, by name: numbers, and how many entries containers have."""
        found: dict[str, Any] = {}
        for kept in self._moment.kept:
            value = kept.slot.get()
            if not isinstance(value, torch.Tensor) and kept.changed():
                found[kept.slot.name] = len(value) if isinstance(value, CONTAINERS) else value
        return found


def _is_alias(func: Any) -> bool:
    return any(each.alias_info is not None for each in func._schema.returns)


def _memory(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _copy(tensor: torch.Tensor) -> torch.UntypedStorage:
    storage = tensor.untyped_storage()
    if storage.device.type == "cpu":
        return storage.clone()
    if storage.nbytes() <= _LARGE_BYTES:
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
