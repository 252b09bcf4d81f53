"""Intercepts PyTorch calls for a plan: the end of a step waits for its last micro-batch, and loaders yield
micro-batches.
"""

import functools

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
    scheduler = torch.optim.lr_scheduler.LRScheduler
    original = scheduler.step

    @functools.wraps(original)
    def step(self, *args, **kwargs):
        if not planned.round.held:
            original(self, *args, **kwargs)

    scheduler.step = step


def _suppress(planned, home, name, instead):
    """Make a call do nothing until the step's last micro-batch."""
    original = getattr(home, name)

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        if planned.holds(name) and not planned.scaling.inside:
            return instead(*args)
        return original(self, *args, **kwargs)

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
            return original(parameters, *args, **kwargs)
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
