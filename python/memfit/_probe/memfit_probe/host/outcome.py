"""Gradients, state and updates of each optimizer step, saved by one run and compared in another."""

import gc
import os
from typing import NamedTuple

# Relative differences that count as rounding, by data type.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-3}
_COARSE_TOLERANCE = 5e-2
# A gradient smaller than this share of the largest one is compared relative to that share instead.
_NEGLIGIBLE_SHARE = 1e-3


class Apart(NamedTuple):
    """The difference between two lists of gradients."""

    share: float
    """The largest relative difference."""
    index: int
    """The index of the gradient with that difference."""
    equal: bool
    """`True` if the difference is rounding."""


SAME = Apart(0.0, 0, True)


class Kept:
    """The gradients, the state and the updated parameters of a run, in two files per step."""

    def __init__(self, torch, folder):
        # Saved before the script's own checkpoints are redirected.
        self.save, self.load = torch.save, torch.load
        self.folder = folder

    def _path(self, step):
        return os.path.join(self.folder, f"step-{step}.pt")

    def _path_updated(self, step):
        return os.path.join(self.folder, f"updated-{step}.pt")

    def write(self, step, gradients, state, settings):
        """Save what a step, counted from 1, is about to use."""
        content = {
            "gradients": [None if each is None else each.clone() for each in gradients],
            "state": {name: each.detach().clone() for name, each in state.items()},
            "settings": settings,
        }
        self.save(content, self._path(step))

    def write_updated(self, step, parameters):
        """Save the optimizer's parameters after a step."""
        self.save([each.detach().clone() for each in parameters], self._path_updated(step))

    def read(self, step):
        """Return what was saved at a step; None if there was no such step."""
        return self._read(self._path(step))

    def read_updated(self, step):
        """Return the parameters after a step; None if there was no such step."""
        return self._read(self._path_updated(step))

    def _read(self, path):
        return self.load(path, weights_only=True) if os.path.exists(path) else None


def parameters_of(optimizer):
    """Return an optimizer's parameters."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def gradients(optimizer):
    """Return an optimizer's parameters and the gradients that it is about to use."""
    parameters = parameters_of(optimizer)
    return parameters, [None if each.grad is None else _dense(each.grad.detach()) for each in parameters]


def _dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def difference(ours, wanted):
    """Compare gradients with the expected ones."""
    if len(ours) != len(wanted):
        return Apart(float("inf"), 0, False)
    norms = [0.0 if each is None else _norm(each) for each in wanted]
    least = _NEGLIGIBLE_SHARE * max(norms, default=0.0)
    worst, where, tolerance = 0.0, 0, 0.0
    for index, (one, other) in enumerate(zip(ours, wanted, strict=True)):
        if one is None and other is None:
            continue
        if one is None or other is None:
            apart = _norm(one if one is not None else other)
        elif one.shape != other.shape:
            return Apart(float("inf"), index, False)
        else:
            tolerance = max(tolerance, tolerance_of(other))
            apart = _norm(one.double() - other.double())
        scale = max(norms[index], least)
        share = apart / scale if scale else (0.0 if apart == 0.0 else float("inf"))
        if not share <= worst:
            worst, where = share, index
            if share != share:
                break
    return Apart(worst, where, worst <= (tolerance or _COARSE_TOLERANCE))


def tolerance_of(tensor):
    """Return the relative difference that counts as rounding in a tensor's data type."""
    return _TOLERANCES.get(str(tensor.dtype).rpartition(".")[2], _COARSE_TOLERANCE)


def relative_norm(one, other, least):
    """Return the norm of the difference divided by that of `other`, or by `least` if that is more.

    Infinite elements, as in masks, must be the same in both.
    """
    finite = one.isfinite() & other.isfinite()
    rest = ~finite
    if not one[rest].equal(other[rest]):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    return _norm(one[finite].double() - other[finite].double()) / max(_norm(other[finite]), least)


def _norm(tensor):
    return float(tensor.double().norm())


def name_of(torch, tensor):
    """Return the longest name of a parameter or buffer in any model, or its shape."""
    names = [
        name
        for module in gc.get_objects()
        # Checks the type, since some objects answer `isinstance` with a warning.
        if issubclass(type(module), torch.nn.Module)
        for name, each in (*module.named_parameters(), *module.named_buffers())
        if each is tensor
    ]
    return max(names, key=len, default=f"a tensor of shape {tuple(tensor.shape)}")
