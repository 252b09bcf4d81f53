"""What levers are applied to."""

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
    """A lever that does not take hold on this target, and why."""

    def __init__(self, lever: str, why: str) -> None:
        super().__init__(f"`{lever}` cannot be applied: {why}")
        self.lever = lever
        self.why = why


def innermost(optimizers: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """The optimizers that update, where others stand around them, as accelerate's do."""
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
    """A training: what computes, what updates, and what goes in."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    loss: Callable[[nn.Module, Any], Any] | None = None
    device: torch.device | None = None
    # Levers that act around each forward and its loss.
    contexts: list[Callable[[], contextlib.AbstractContextManager[Any]]] = field(default_factory=list)
    # What is done to each micro-batch before its forward, on the host or on the device, wherever it is.
    preparations: list[Callable[[Any], Any]] = field(default_factory=list)
    # What is done to a whole batch on the host, as it comes from the loader.
    arrivals: list[Callable[[Any], Any]] = field(default_factory=list)
    # What is done to a script's loader before it is gone over.
    reloads: list[Callable[[Any], Any]] = field(default_factory=list)
    # Samples that go through the model together; none to leave that to whoever runs the step.
    micro_batch: int | None = None
    # Whether losses have to be scaled: fp16 has few small numbers.
    scales: bool = False
    # Whether parameters are updated within the backward, so that gradients are gone after it.
    updates_in_backward: bool = False
    # What a compiler makes of a function, where the model's blocks are compiled.
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    # Forwards that were compiled because what is around them could not be.
    pieces: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)
    # Whether the device computes: on one that does not, what its numbers are says nothing.
    computes: bool = True
    # Whether levers may be undone: what was there before them is kept for it then, on the host.
    undoes: bool = True
    # Modules that a lever wraps and that no forward has called yet, by name, with the lever.
    uncalled: dict[str, str] = field(default_factory=dict)
    # Sentences for the user: what took no hold here, and why that is well.
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizers = innermost(self.optimizers)

    def models(self) -> list[nn.Module]:
        """What is called by itself: the model, or the several that it stands for."""
        return models(self.model)

    def place(self) -> torch.device:
        """Where the model computes."""
        if self.device is not None:
            return self.device
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """What a forward and its loss run within."""
        if not self.contexts:
            yield
            return
        with contextlib.ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            yield

    def prepare(self, batch: Any) -> Any:
        """A micro-batch as the levers want it."""
        for preparation in self.preparations:
            batch = preparation(batch)
        return batch

    def arrive(self, batch: Any) -> Any:
        """A batch of the loader's as the levers want it, still on the host."""
        for arrival in self.arrivals:
            batch = arrival(batch)
        return batch

    def load(self, loader: Any) -> Any:
        """A loader as the levers want it."""
        for reload in self.reloads:
            loader = reload(loader)
        return loader

    def note_uncalled(self) -> None:
        """Say which wrapped modules no forward called in a whole step: the lever does nothing there."""
        for name, lever in self.uncalled.items():
            self.note(
                f"`{lever}` has no effect on `{name}`: the first step did not call it; name the modules that the "
                "model's forward calls"
            )
        self.uncalled.clear()

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)
            warn(text)


class Applied:
    """Levers that took hold, the last of which is undone first."""

    def __init__(self) -> None:
        self._undo: list[tuple[str, Undo]] = []

    @property
    def names(self) -> list[str]:
        """Which they are."""
        return [name for name, _ in self._undo]

    def add(self, name: str, undo: Undo) -> None:
        self._undo.append((name, undo))

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()[1]()


def modules(target: Target, lever: str, names: Any) -> list[nn.Module]:
    """The modules that a value names: a list of dotted names; every one has to be there."""
    known = dict(target.model.named_modules())
    if isinstance(names, str):
        names = [names]
    missing = [name for name in names if name not in known]
    if missing:
        near = [name for name in known if name.split(".")[-1] == missing[0].split(".")[-1]][:3]
        hint = f"; there are {', '.join(f'`{name}`' for name in near)}" if near else ""
        raise CannotApply(lever, f"the model has no module `{missing[0]}`{hint}")
    for name in names:
        _refuse_container(lever, name, known[name])
    return [known[name] for name in names]


def _refuse_container(lever: str, name: str, module: nn.Module) -> None:
    """Refuse a `ModuleList` and the like: it is never called, so nothing around its forward takes effect."""
    if type(module).forward is not nn.Module.forward or "forward" in vars(module):
        return
    entries = [f"`{name}.{child}`" if name else f"`{child}`" for child, _ in module.named_children()]
    shown = ", ".join(entries[:3]) + (", …" if len(entries) > 3 else "")
    kind = type(module).__name__
    raise CannotApply(
        lever, f"`{name}` is a {kind}, which has no forward of its own" + (f"; name {shown}" if shown else "")
    )


def table(value: Any, first: str) -> dict[str, Any]:
    """A value with several parts: a table, or a text such as `workers=4,prefetch=2,pin=true`, as plan files
    have it; one number alone is the part named `first`.
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


def take_out(where: list[Any], what: Any) -> None:
    """Remove one entry, by identity."""
    where[:] = [entry for entry in where if entry is not what]
