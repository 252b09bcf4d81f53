"""Gradients of each optimizer step, kept by one run and compared in another."""

import gc
import os
from typing import NamedTuple

# Relative differences that are rounding, by the type that was computed in.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-3}
_COARSE = 5e-2
# A gradient smaller than this share of the largest one is compared with that share.
_NEGLIGIBLE = 1e-3


class Apart(NamedTuple):
    """How far two lists of gradients are apart."""

    share: float
    """The largest relative difference."""
    index: int
    """Which gradient has it."""
    equal: bool
    """Whether that is rounding."""


SAME = Apart(0.0, 0, True)


class Kept:
    """The gradients of a run, a file for each step."""

    def __init__(self, torch, folder):
        # As they are before the script's own checkpoints are led aside.
        self.save, self.load = torch.save, torch.load
        self.folder = folder

    def _path(self, step):
        return os.path.join(self.folder, f"gradients-{step}.pt")

    def write(self, step, gradients):
        """Keeps the gradients of the step of this number, from 1."""
        self.save([None if each is None else each.clone() for each in gradients], self._path(step))

    def read(self, step):
        """The gradients that were kept; None where there was no such step."""
        path = self._path(step)
        return self.load(path, weights_only=True) if os.path.exists(path) else None


def gradients(optimizer):
    """An optimizer's parameters and their gradients, on which it is about to step."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return parameters, [None if each.grad is None else _dense(each.grad.detach()) for each in parameters]


def _dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def difference(ours, wanted):
    """How far these gradients are from those that were wanted."""
    if len(ours) != len(wanted):
        return Apart(float("inf"), 0, False)
    norms = [0.0 if each is None else _norm(each) for each in wanted]
    least = _NEGLIGIBLE * max(norms, default=0.0)
    worst, where, kinds = 0.0, 0, set()
    for index, (one, other) in enumerate(zip(ours, wanted, strict=True)):
        if one is None and other is None:
            continue
        if one is None or other is None:
            apart = _norm(one if one is not None else other)
        elif one.shape != other.shape:
            return Apart(float("inf"), index, False)
        else:
            kinds.add(str(other.dtype).rpartition(".")[2])
            apart = _norm(one.double() - other.double())
        scale = max(norms[index], least)
        share = apart / scale if scale else (0.0 if apart == 0.0 else float("inf"))
        if not share <= worst:
            worst, where = share, index
            if share != share:
                break
    tolerance = max((_TOLERANCES.get(kind, _COARSE) for kind in kinds), default=_COARSE)
    return Apart(worst, where, worst <= tolerance)


def _norm(tensor):
    return float(tensor.double().norm())


def name_of(torch, parameter):
    """A parameter's longest name in any model; its shape where it has none."""
    names = [
        name
        for module in gc.get_objects()
        # Asked of the type: some objects answer `isinstance` with a warning.
        if issubclass(type(module), torch.nn.Module)
        for name, each in module.named_parameters()
        if each is parameter
    ]
    return max(names, key=len, default=f"a parameter of shape {tuple(parameter.shape)}")
