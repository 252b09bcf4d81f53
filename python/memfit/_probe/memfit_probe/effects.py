"""Detects what a script does in each iteration besides forward and backward pass and the optimizer's step.

If a loader's batches are divided, the script's own lines run once for each micro-batch. Steps, clipping,
schedulers and averaged models of PyTorch wait for the last one; other changes to gradients, parameters,
copies of them and the optimizer's settings do not.
"""

import contextlib
import os

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.weak import WeakTensorKeyDictionary

from . import checkpoints
from .flows import site
from .independence import operation_name, tensors, written_tensors
from .oom import frames_here

REPEATED = "which would happen once per micro-batch instead of once per batch"
GRADIENTS = f"the script changes gradients between the backward pass and the optimizer's step, {REPEATED}"
HOOKS = "hooks on parameters see the gradient of each micro-batch before it is complete"
SETTINGS = f"the script itself sets the optimizer's `{{}}` in each iteration, {REPEATED}"
WEIGHTS = f"the script changes parameters outside the optimizer's step ({{}}), {REPEATED}"
COPIES = (
    f"the script updates tensors from the parameters (an average of weights, or a copy: {{}}), {REPEATED}"
)
# Writes that give the same result however often they run.
_CLEARING = ("zero_", "_foreach_zero_")


class Effects:
    """Observed effects of an unmodified script."""

    def __init__(self, session):
        self.session = session
        self._between = None
        self.forget()

    def forget(self):
        """Reset the state."""
        self._leave()
        # The first effect; None if there was none.
        self.why = None
        # Nesting depth of `excused`: PyTorch code that a plan postpones to the last micro-batch.
        self._excused = 0
        self._is_stepping = False
        # Settings before the first step are those of the constructors.
        self._has_stepped = False
        # Each gradient after the last backward pass or clipping, and the settings after the last step.
        self._gradients = {}
        self._settings = {}
        # Memory made while it watched, and tensors that were computed from parameters.
        self._made = set()
        self._derived = WeakTensorKeyDictionary()
        self._trained = None

    def found(self, why):
        """Record an effect."""
        self.why = self.why or why

    @property
    def watches(self):
        """`True` if the script runs unmodified, in order to be measured."""
        planned = self.session.planned
        return (
            self.why is None
            and planned.measures
            and not planned.levers
            and planned.framework != "transformers"
        )

    # Gradients and settings

    def _parameters(self):
        for optimizer in self.session.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def gradients_complete(self):
        """Record the gradients after a backward pass, or after a change that a plan postpones."""
        if self.watches:
            grads = ((id(each), each.grad) for each in self._parameters())
            self._gradients = {key: (id(grad), grad._version) for key, grad in grads if grad is not None}

    def gradients_used(self):
        """Compare the gradients at the next backward pass or step."""
        if not self.watches:
            return
        for parameter in self._parameters():
            known, grad = self._gradients.get(id(parameter)), parameter.grad
            if known is not None and grad is not None and known != (id(grad), grad._version):
                self.found(GRADIENTS)
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                self.found(HOOKS)
        self._gradients = {}

    def settings_final(self):
        """Record the settings of all optimizers after a step, a scheduler's step, or at a new epoch."""
        if self.watches and self._has_stepped:
            self._settings = {id(each): _settings(each) for each in self.session.optimizers}

    def settings_used(self):
        """Compare the settings at the next step, of an optimizer or a scheduler."""
        if not self.watches:
            return
        for optimizer in self.session.optimizers:
            now = _settings(optimizer)
            known = self._settings.get(id(optimizer), now)
            for group, before in zip(now, known, strict=False):
                changed = [name for name, value in group.items() if before.get(name, value) != value]
                if changed:
                    self.found(SETTINGS.format(changed[0]))

    # Parameters and copies of them

    @contextlib.contextmanager
    def excused(self):
        """Ignore the code inside, which a plan postpones to the last micro-batch."""
        self._excused += 1
        try:
            yield
        finally:
            self._excused -= 1

    def steps(self):
        """Compare at the start of an optimizer's step, whose own operations do not count."""
        self.gradients_used()
        self.settings_used()
        if self._between is None:
            self.ends()
        self._is_stepping = True

    def stepped(self):
        """Start watching after an optimizer step."""
        self._is_stepping = False
        self._has_stepped = True
        self.settings_final()
        if self._between is None and self.watches:
            self._between = _Between(self)
            self._between.__enter__()

    def goes_on(self):
        """Stop watching at the next batch, or at its forward or backward pass."""
        if self._between is not None:
            self._leave()
            self.ends()

    def _leave(self):
        between, self._between = self._between, None
        if between is not None:
            # If the script entered a dispatch mode after this one, this one cannot be popped, and is only
            # switched off.
            between.active = False
            if between is _get_current_dispatch_mode():
                between.__exit__(None, None, None)

    def ends(self):
        """Judge the tensors that were computed from parameters and still exist."""
        if self.watches and len(self._derived):
            self.found(COPIES.format(next(iter(self._derived.values()))))
        self._derived = WeakTensorKeyDictionary()
        self._made.clear()
        self._trained = None

    def places(self, func, args, kwargs):
        """Return the memory whose values an operation is about to write; `None` if it does not count."""
        if self._excused or self._is_stepping or checkpoints.is_copying() or not self.watches:
            return None
        # Tensors of other kinds may have no memory to tell them by.
        with contextlib.suppress(Exception):
            return [_memory(each) for each in written_tensors(func, args, kwargs)]
        return None

    def look(self, func, args, kwargs, written, returned):
        """Look at an operation outside autograd that wrote this memory."""
        with contextlib.suppress(Exception):
            self._look(func, args, kwargs, written, returned)

    def _look(self, func, args, kwargs, written, returned):
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors(returned)):
            return
        if self._trained is None:
            self._trained = {_memory(each): each.shape for each in self._parameters()}
        inputs, outputs = list(tensors((*args, *kwargs.values()))), list(tensors(returned))
        shapes = {self._trained[place] for each in inputs if (place := _memory(each)) in self._trained}
        shapes |= {each.shape for each in inputs if each in self._derived}
        if written and operation_name(func) not in _CLEARING:
            if any(place in self._trained for place in written):
                self.found(WEIGHTS.format(_described(func)))
            elif shapes and any(place not in self._made for place in written):
                self.found(COPIES.format(_described(func)))
        if any(each.alias_info is not None for each in func._schema.returns):
            # A view shares the memory of its base, so it makes none.
            return
        self._made.update(map(_memory, outputs))
        derived = [output for output in outputs if output.shape in shapes and output.numel() > 1]
        # One operation may make a tensor for each of many parameters.
        described = _described(func) if derived else None
        for output in derived:
            self._derived[output] = described


class _Between(TorchDispatchMode):
    """Watches from an optimizer's step to the next batch."""

    def __init__(self, effects):
        super().__init__()
        self.effects = effects
        self.active = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # Before it runs: `set_` and the like give a tensor other memory, whose values they do not write.
        written = self.effects.places(func, args, kwargs) if self.active else None
        returned = func(*args, **kwargs)
        if written is not None:
            self.effects.look(func, args, kwargs, written, returned)
        return returned


def _described(func):
    """Describe an operation and the user's line that calls it."""
    path, line, _ = site(frames_here())
    name = f"`{operation_name(func)}`"
    return name if path is None else f"{name} at {os.path.basename(path)}:{line}"


def _settings(optimizer):
    """Return the settings of an optimizer's groups; tensors by their identity and version."""
    return [
        {
            name: (id(value), value._version) if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def _memory(tensor):
    return tensor.untyped_storage()._cdata
