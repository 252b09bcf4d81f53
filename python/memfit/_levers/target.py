"""The object that levers are applied to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .saying import warn
from .several import models

Undo = Callable[[], None]


class CannotApply(RuntimeError):  # noqa: N818
    """A lever cannot be applied to this target; the message says why."""

    def __init__(self, lever: str, why: str) -> None:
        super().__init__(f"`{lever}` cannot be applied: {why}")
        self.lever = lever
        self.why = why


@contextlib.contextmanager
def needs(lever: str, package: str) -> Iterator[None]:
    """Import a library that only this lever needs; without it, the lever cannot be applied."""
    try:
        yield
    except ImportError as error:
        raise CannotApply(lever, f"{package} cannot be used: {error}; `pip install {package}`") from error


def innermost(optimizers: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Unwrap optimizers that are wrapped by others, such as accelerate's."""
    found: list[torch.optim.Optimizer] = []
    for optimizer in optimizers:
        inner = optimizer
        while not hasattr(inner, "_optimizer_step_pre_hooks"):
            within = getattr(inner, "optimizer", None)
            if not isinstance(within, torch.optim.Optimizer):
                break
            inner = within
        if not any(inner is known for known in found):
            found.append(inner)
    return found


@dataclass
class Target:
    """A training: model, optimizers, loss and inputs."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    loss: Callable[[nn.Module, Any], Any] | None = None
    device: torch.device | None = None
    # Context managers of levers around each forward pass and its loss.
    contexts: list[Callable[[], contextlib.AbstractContextManager[Any]]] = field(default_factory=list)
    # Functions applied to each micro-batch before its forward pass, on its current device.
    preparations: list[Callable[[Any], Any]] = field(default_factory=list)
    # Functions applied to a whole batch on the host, as it comes from the loader.
    arrivals: list[Callable[[Any], Any]] = field(default_factory=list)
    # Functions applied to a script's loader before it is iterated.
    reloads: list[Callable[[Any], Any]] = field(default_factory=list)
    # Micro-batch size; `None` leaves it to the code that runs the step.
    micro_batch: int | None = None
    # `True` if losses have to be scaled, because fp16 gradients underflow.
    scales: bool = False
    # `True` if parameters are updated in the backward pass, which frees the gradients.
    updates_in_backward: bool = False
    # Compiles a function, if the model's blocks are compiled.
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    # Forwards that were compiled because the code around them could not be.
    pieces: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)
    # `False` if the device computes no values, so that tensors' contents mean nothing.
    computes: bool = True
    # Positional and keyword arguments of a call of the model, for levers that trace one.
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    # `True` if `memfit.Step` runs the model, and not the script's own code.
    in_step: bool = False
    # `True` if levers may be undone: the previous state is then kept on the host.
    undoes: bool = True
    # Levers that have found nothing to change yet, with the reason to state if that stays so, by lever and
    # module; an empty name is the whole model.
    idle: dict[tuple[str, str], str] = field(default_factory=dict)
    # Messages for the user: levers without effect here, and why that is fine.
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizers = innermost(self.optimizers)

    def models(self) -> list[nn.Module]:
        """Return the models that are called: the model, or the several that it combines."""
        return models(self.model)

    def place(self) -> torch.device:
        """Return the device the model runs on."""
        if self.device is not None:
            return self.device
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Enter the contexts of a forward pass and its loss."""
        if not self.contexts:
            yield
            return
        with contextlib.ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            yield

    def prepare(self, batch: Any) -> Any:
        """Apply the levers' changes to a micro-batch."""
        for preparation in self.preparations:
            batch = preparation(batch)
        return batch

    def arrive(self, batch: Any) -> Any:
        """Apply the levers' changes to a batch from the loader, still on the host."""
        for arrival in self.arrivals:
            batch = arrival(batch)
        return batch

    def load(self, loader: Any) -> Any:
        """Apply the levers' changes to a loader."""
        for reload in self.reloads:
            loader = reload(loader)
        return loader

    def takes_effect(self, lever: str, module: str = "") -> None:
        """Record that a lever has found what it changes."""
        self.idle.pop((lever, module), None)

    def note_idle(self) -> None:
        """Name the levers that found nothing to change in a whole step."""
        for (lever, module), why in self.idle.items():
            place = f" on `{module}`" if module else ""
            self.note(f"`{lever}` has no effect{place}: {why}")
        self.idle.clear()

    def note(self, text: str) -> None:
        """Show a message once."""
        if text not in self.notes:
            self.notes.append(text)
            warn(text)


class Applied:
    """Applied levers, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[str, Undo]] = []

    @property
    def names(self) -> list[str]:
        """The names of the levers."""
        return [name for name, _ in self._undo]

    def add(self, name: str, undo: Undo) -> None:
        self._undo.append((name, undo))

    def undo(self) -> None:
        """Undo all levers."""
        while self._undo:
            self._undo.pop()[1]()


def modules(target: Target, lever: str, names: Any) -> list[nn.Module]:
    """Return modules by their dotted names. Raises `CannotApply` if one is missing."""
    known = dict(target.model.named_modules())
    if isinstance(names, str):
        names = [names]
    missing = [name for name in names if name not in known]
    if missing:
        near = [name for name in known if name.split(".")[-1] == missing[0].split(".")[-1]][:3]
        hint = f"; did you mean {', '.join(f'`{name}`' for name in near)}?" if near else ""
        raise CannotApply(lever, f"the model has no module `{missing[0]}`{hint}")
    for name in names:
        _refuse_container(lever, name, known[name])
    return [known[name] for name in names]


def _refuse_container(lever: str, name: str, module: nn.Module) -> None:
    """Refuse a `ModuleList` or similar: it is never called, so wrapping its forward has no effect."""
    if type(module).forward is not nn.Module.forward or "forward" in vars(module):
        return
    entries = [f"`{name}.{child}`" if name else f"`{child}`" for child, _ in module.named_children()]
    shown = ", ".join(entries[:3]) + (", …" if len(entries) > 3 else "")
    kind = type(module).__name__
    raise CannotApply(
        lever, f"`{name}` is a {kind}, which has no `forward` method" + (f"; name {shown}" if shown else "")
    )


def table(value: Any, first: str) -> dict[str, Any]:
    """Read a value with several parts: a table, or a text such as `workers=4,prefetch=2,pin=true`, as in plan
    files; a single value is the part named `first`.
    """
    if isinstance(value, dict):
        return dict(value)
    if not isinstance(value, str):
        return {} if value is True else {first: value}
    parts: dict[str, Any] = {}
    for entry in value.split(","):
        key, _, text = entry.partition("=")
        word = text.strip()
        known = {"true": True, "false": False, "": True}
        number = word.removeprefix("-").isdigit()
        parts[key.strip()] = int(word) if number else known.get(word.lower(), word)
    return parts


def percentage(value: Any, lever: str) -> int:
    """Read a percentage above 0 and below 100."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 100:
        raise CannotApply(lever, f"the value must be a percentage between 1 and 99, got {value!r}")
    return value


def take_out(where: list[Any], what: Any) -> None:
    """Remove one entry, by identity."""
    where[:] = [entry for entry in where if entry is not what]
