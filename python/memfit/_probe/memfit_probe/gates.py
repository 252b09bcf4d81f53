"""Intercepts PyTorch calls for a plan: the end of a step waits for its last micro-batch, and loaders yield
micro-batches.
"""

import functools
import types

from . import imports
from .cuts import Pieces


def arm(planned):
    """Intercept zero_grad, clipping, scaling, schedulers and loaders."""
    torch = planned.session.torch
    imports.after("torch.utils.data.dataloader", functools.partial(_arm_loaders, planned))
    _suppress(planned, torch.nn.Module, "zero_grad", lambda *_: None)
    for home in (torch.nn.utils, torch.nn.utils.clip_grad):
        _hold(planned, home, "clip_grad_norm_", True)
        _hold(planned, home, "clip_grad_value_", False)
    scaler = torch.amp.GradScaler
    _suppress(planned, scaler, "step", lambda optimizer=None, *_: planned.held_back(optimizer))
    for name in ("update", "unscale_"):
        _suppress(planned, scaler, name, lambda *_: None)
    # Some schedulers have a step of their own.
    for kind in vars(torch.optim.lr_scheduler).values():
        if isinstance(kind, type) and "step" in vars(kind) and kind is not torch.optim.Optimizer:
            _schedule(planned, kind)
    _average(planned, torch.optim.swa_utils.AveragedModel)


def _schedule(planned, kind):
    """Step a scheduler once per optimizer step."""
    original = kind.step

    @functools.wraps(original)
    def step(self, *args, **kwargs):
        if not planned.round.held:
            planned.facts.division.effects.settings_used()
            original(self, *args, **kwargs)
            planned.facts.division.effects.settings_final()

    kind.step = step


def _average(planned, kind):
    """Update an averaged model once per optimizer step."""
    original = kind.update_parameters

    @functools.wraps(original)
    def update_parameters(self, *args, **kwargs):
        if not planned.round.held:
            with planned.facts.division.effects.excused():
                original(self, *args, **kwargs)

    kind.update_parameters = update_parameters


def arm_optimizer(planned, optimizer):
    """Hold the steps of an optimizer back until the last micro-batch, and zero its gradients then."""
    clear = optimizer.zero_grad
    # It evaluates the loss several times, so it needs the whole batch.
    several_times = planned.session.torch.optim.LBFGS

    @functools.wraps(optimizer.step.__func__)
    def step(self, *args, **kwargs):
        # A lever may have changed its class since, and the step with it.
        original = functools.partial(type(self).step, self)
        closure = args[0] if args else kwargs.get("closure")
        if (
            planned.scaling.inside
            or len(args) > 1
            or (closure is not None and isinstance(self, several_times))
        ):
            return original(*args, **kwargs)
        kwargs.pop("closure", None)
        return planned.step(self, functools.partial(original, **kwargs), closure)

    @functools.wraps(clear.__func__)
    def zero_grad(self, *args, **kwargs):
        if not planned.round.held:
            clear(*args, **kwargs)
            planned.facts.division.effects.gradients_complete()

    optimizer.step = types.MethodType(step, optimizer)
    # Steps that levers install call this one.
    optimizer.__dict__["_memfit_gate"] = optimizer.step
    optimizer.zero_grad = types.MethodType(zero_grad, optimizer)


def _suppress(planned, home, name, instead):
    """Make a call do nothing until the step's last micro-batch."""
    original = getattr(home, name)

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        if planned.holds(name) and not planned.scaling.inside:
            return instead(*args)
        returned = original(self, *args, **kwargs)
        if name in ("zero_grad", "unscale_"):
            planned.facts.division.effects.gradients_complete()
        return returned

    setattr(home, name, call)


def _hold(planned, home, name, gives_norm):
    """Clip once, when all gradients of a step are accumulated."""
    original = getattr(home, name)

    @functools.wraps(original)
    def clip(parameters, *args, **kwargs):
        if not planned.clipped:
            planned.clipped = True
            planned.refuse_clipping()
        if planned.round.ends():
            planned.scaling.unscale(list(planned.session.optimizers))
            returned = original(parameters, *args, **kwargs)
            planned.facts.division.effects.gradients_complete()
            return returned
        return planned.session.torch.zeros(()) if gives_norm else None

    setattr(home, name, clip)


def _arm_loaders(planned, module):
    loader_class = module.DataLoader
    original, init = loader_class._index_sampler.fget, loader_class.__init__

    def index_sampler(self):
        sampler = planned.bucketed(original(self), self.dataset)
        return Pieces(sampler, planned, self.dataset) if self._auto_collation else sampler

    @functools.wraps(init)
    def made(self, *args, **kwargs):
        init(self, *args, **kwargs)
        planned.inputs.loaders.add(self)

    loader_class._index_sampler = property(index_sampler)
    loader_class.__init__ = made
