"""The variables that a forward pass may read or write: of the loss function's closure, of objects, classes
and functions around it, of the model's hooks and classes, and variables of modules that they name.
"""

from __future__ import annotations

import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .slots import CONTAINERS, MODULE_TABLES, Slot, attribute, attributes_of, entry, is_array, is_saved

# Limits of the search.
_MAX_DEPTH = 5
_MAX_VARIABLES = 2000
_MAX_ENTRIES = 64
# A variable that changes in each batch causes a comparison for this many changes, and then for the first of
# twice as many.
_MAX_CHANGES = 4
# Larger NumPy arrays are not compared.
_MAX_COMPARED_BYTES = 1 << 12
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_NUMBERS = (int, float, str, type(None))
_NO_STATE = (torch.Tensor, torch.utils.data.Dataset, torch.utils.data.DataLoader, torch.optim.Optimizer)


def around(loss: Any, known: frozenset[int] = frozenset(), name: str = "") -> list[Slot]:
    """Return the variables around a loss function that hold plain values or containers, without those of
    objects with the `known` identities.
    """
    return [slot for slot in variables_of(loss, known, name) if is_saved(slot.get())]


def variables_of(loss: Any, known: frozenset[int] = frozenset(), name: str = "") -> list[Slot]:
    """Return all variables around a loss function."""
    return _search([(loss, name)], known)


def around_modules(modules: Sequence[nn.Module]) -> list[Slot]:
    """Return the variables that modules may read or write besides their attributes: within an attribute, of
    their hooks, and of the user's own classes.
    """
    roots: list[tuple[Any, str]] = []
    inner = {each: name for module in modules for name, each in module.named_modules()}
    for each, name in inner.items():
        roots += [(hook, "") for hook in _hooks_of(each)]
        own = vars(each).items()
        roots += [(value, f"{name}.{key}" if name else key) for key, value in own if key not in MODULE_TABLES]
    roots += dict.fromkeys((kind, kind.__name__) for each in inner for kind in type(each).__mro__)
    known = frozenset(id(each) for each in inner)
    roots = [(root, name) for root, name in roots if id(root) not in known and _is_followed(root)]
    return [slot for slot in _search(roots, known) if is_saved(slot.get())]


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    """Yield the user's own hooks of a module and of its parameters."""
    tables = [getattr(module, name, None) for name in _HOOKS]
    for parameter in module._parameters.values():
        tables += [getattr(parameter, name, None) for name in _HOOKS_OF_TENSORS]
    yield from (hook for table in tables if table for hook in table.values() if _is_own_callable(hook))


def _is_own_callable(hook: Any) -> bool:
    """Return `False` for a library's: the state of FSDP2 belongs to its hooks."""
    while isinstance(hook, (partial, types.MethodType)):
        hook = hook.func if isinstance(hook, partial) else hook.__func__
    return _is_own((hook if isinstance(hook, types.FunctionType) else type(hook)).__module__)


def _search(roots: Sequence[tuple[Any, str]], known: frozenset[int]) -> list[Slot]:
    found: list[Slot] = []
    seen = {*known, *(id(root) for root, _ in roots)}
    waiting: deque[tuple[Any, str, int]] = deque((root, name, 0) for root, name in roots)
    while waiting and len(found) < _MAX_VARIABLES:
        value, name, depth = waiting.popleft()
        own = _variables(value, name)
        found += own
        for content, inner in (*((slot.get(), slot.name) for slot in own), *_used(value, name)):
            # The loss function may be a method of a library's object.
            is_owner = depth == 0 and isinstance(value, types.MethodType) and content is value.__self__
            if depth < _MAX_DEPTH and id(content) not in seen and (is_owner or _is_followed(content)):
                seen.add(id(content))
                waiting.append((content, inner, depth + 1))
    return found


def _variables(value: Any, name: str) -> list[Slot]:
    """Return the variables of a function, an object or a class, and the containers within a container."""
    if not name:
        name = value.__name__ if isinstance(value, (types.FunctionType, type)) else type(value).__name__
    if isinstance(value, types.FunctionType):
        return list(_of_function(value, name))
    if isinstance(value, partial):
        return [
            *(entry(value.keywords, key, key) for key in value.keywords),
            *_contents(enumerate(value.args), name),
        ]
    if isinstance(value, nn.Module):
        buffers = [entry(value._buffers, key, f"{name}.{key}") for key in value._buffers]
        return [*attributes_of(name, value), *buffers]
    if isinstance(value, (list, tuple, dict)):
        return _contents(value.items() if isinstance(value, dict) else enumerate(value), name)
    if isinstance(value, types.MethodType):
        return []
    if isinstance(value, type):
        return [
            attribute(value, key, f"{name}.{key}")
            for key, each in vars(value).items()
            if is_saved(each) and not key.startswith("__")
        ]
    slots = [attribute(value, key, f"{name}.{key}") for key in _slots_of(type(value)) if hasattr(value, key)]
    return [*slots, *(entry(value.__dict__, key, f"{name}.{key}") for key in getattr(value, "__dict__", ()))]


def _contents(entries: Iterable[tuple[Any, Any]], name: str) -> list[Slot]:
    """Return the containers and arrays among entries. They change in place; their container is a variable of
    its own.
    """
    return [
        Slot(f"{name}[{key!r}]", partial(_same, each), _ignore)
        for key, each in entries
        if isinstance(each, CONTAINERS) or is_array(each)
    ]


def _slots_of(kind: type) -> Iterator[str]:
    """Yield the names in `__slots__` of a class and its bases."""
    for each in kind.__mro__:
        names = vars(each).get("__slots__", ())
        yield from (key for key in ((names,) if isinstance(names, str) else names) if key[:2] != "__")


def _used(value: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield what a value calls or contains besides its variables."""
    if isinstance(value, types.MethodType):
        yield value.__func__, ""
        yield value.__self__, type(value.__self__).__name__
    elif isinstance(value, partial):
        yield value.func, ""
        yield from ((each, "") for each in value.args)
    elif isinstance(value, (list, tuple, dict)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((each, f"{name}[{key!r}]") for key, each in entries)
    elif isinstance(value, type):
        for each in vars(value).values():
            if isinstance(each, property):
                yield each.fget, ""
            else:
                yield each.__func__ if isinstance(each, (staticmethod, classmethod)) else each, ""
    elif not isinstance(value, types.FunctionType):
        if isinstance(value, nn.Module):
            yield from ((each, f"{name}.{key}") for key, each in value._modules.items())
            yield from ((hook, "") for hook in _hooks_of(value))
        yield from ((kind, kind.__name__) for kind in type(value).__mro__)


def _of_function(function: types.FunctionType, name: str) -> Iterator[Slot]:
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield Slot(key, partial(_content, cell), partial(_fill, cell))
    yield from (entry(function.__dict__, key, f"{name}.{key}") for key in function.__dict__)
    defaults: list[tuple[Any, Any]] = [*enumerate(function.__defaults__ or ())]
    defaults += (function.__kwdefaults__ or {}).items()
    yield from _contents(defaults, f"{name}'s defaults")
    names = dict.fromkeys(_names(function.__code__))
    yield from _of_names(function.__globals__, names, "", set())


def _of_names(space: dict[str, Any], names: Iterable[str], prefix: str, seen: set[str]) -> Iterator[Slot]:
    """Yield the variables with these names in a module's dictionary, and in the user's own modules that are
    named: `settings.step`, also after `import settings` in the function.
    """
    for name in names:
        value = space[name] if name in space else None if prefix else sys.modules.get(name)
        if isinstance(value, types.ModuleType):
            if _is_own(value.__name__) and value.__name__ not in seen:
                seen.add(value.__name__)
                yield from _of_names(vars(value), names, f"{prefix}{name}.", seen)
        elif name in space:
            yield entry(space, name, f"{prefix}{name}")


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the global names of a function and of those within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_followed(value: Any) -> bool:
    """Return `True` for functions and objects of the user's own code, and small containers of them."""
    if isinstance(value, (list, tuple, dict)):
        return 0 < len(value) <= _MAX_ENTRIES and not isinstance(value, torch.Size)
    if isinstance(value, (types.MethodType, partial)):
        return _is_own_callable(value)
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, (types.FunctionType, type)):
        return _is_own(value.__module__)
    return _is_holder(value)


def _is_holder(value: Any) -> bool:
    """Return `True` for an object of one of the user's own classes."""
    if isinstance(value, (type, types.ModuleType, types.FunctionType, nn.Module, *_NO_STATE)):
        return False
    if not hasattr(value, "__dict__") and not any(_slots_of(type(value))):
        return False
    return _is_own(type(value).__module__) or isinstance(value, types.SimpleNamespace)


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN: dict[str, bool] = {"__main__": True, "argparse": True, "queue": True}


def _is_own(module: str | None) -> bool:
    """Return `True` for a module that is in no library."""
    if module is None:
        return False
    if module not in _OWN:
        file = getattr(sys.modules.get(module), "__file__", None)
        library = module.split(".")[0] in ("memfit", *sys.builtin_module_names)
        _OWN[module] = file is not None and not library and not file.startswith(_LIBRARIES)
    return _OWN[module]


def _same(value: Any) -> Any:
    return value


def _ignore(_: Any) -> None:
    pass


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _fill(cell: Any, value: Any) -> None:
    cell.cell_contents = value


def _of_modules(modules: Sequence[nn.Module]) -> list[Slot]:
    """Return the attributes and buffers of modules of the user's own classes."""
    found: list[Slot] = []
    for module in modules:
        for name, each in module.named_modules():
            if _is_own(type(each).__module__) and len(found) < _MAX_VARIABLES:
                found += _variables(each, name)
    return found


class Changes:
    """Changes to the variables around a loss function and to the attributes of its modules, between one
    divided batch and the next.
    """

    def __init__(self, loss: Any, modules: Sequence[nn.Module]) -> None:
        self._loss = loss
        self._modules = modules
        self._slots: list[Slot] = []
        self._values: list[Any] = []
        # Number of changes of each variable.
        self._counts: dict[str, int] = {}

    def list_again(self) -> None:
        """List the variables again."""
        known = frozenset(id(each) for module in self._modules for each in module.modules())
        self._slots = around(self._loss, known) + around_modules(self._modules) + _of_modules(self._modules)
        self._values = [_seen(slot.get()) for slot in self._slots]

    def look(self) -> bool:
        """Return `True` if a variable changed that rarely does, or that was zero, empty or absent before."""
        now = [_seen(slot.get()) for slot in self._slots]
        if now == self._values:
            return False
        found = False
        for slot, value, before in zip(self._slots, now, self._values, strict=True):
            if value != before:
                count = self._counts[slot.name] = self._counts.get(slot.name, 0) + 1
                found |= not before or count <= _MAX_CHANGES or count & (count - 1) == 0
        self._values = now
        return found


def _seen(value: Any) -> Any:
    """Return a value to compare: of tensors their identity and version, of containers their plain entries."""
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if is_array(value):
        return id(value), value.tobytes() if value.nbytes <= _MAX_COMPARED_BYTES else b""
    if not isinstance(value, (*CONTAINERS, tuple)):
        return value
    if len(value) > _MAX_ENTRIES:
        return len(value)
    if isinstance(value, dict):
        return [(key, each if isinstance(each, _NUMBERS) else id(each)) for key, each in value.items()]
    if isinstance(value, set):
        return len(value)
    return [each if isinstance(each, _NUMBERS) else id(each) for each in value]
