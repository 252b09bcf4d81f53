"""State besides gradients that training changes: buffers, parameters outside the optimizer, its settings.

A batch normalisation that runs twice per step leaves the gradients as they are, and changes what the model
computes later. The same holds for an average of the weights and for a schedule of the learning rate.
"""

import collections
import gc
import itertools
import math
from typing import NamedTuple

from .outcome import name_of, relative_norm, tolerance_of

# A tensor whose elements are smaller than this on average is compared with this size instead.
_NEGLIGIBLE = 1e-3
# Relative difference of settings that counts as rounding: they are computed in Python's floats.
_SETTING_TOLERANCE = 1e-9
# Rounding errors of a parameter's last place that an update may have.
_ULPS = 4


class Change(NamedTuple):
    """The largest difference between two states."""

    name: str
    share: float
    """Relative to the expected state."""
    equal: bool
    """`True` if the difference is rounding."""


class States:
    """Reads the state before each optimizer step."""

    def __init__(self, torch):
        self.torch = torch
        # Versions of the parameters outside the optimizer, which count only once they change.
        self.versions = {}
        # The modules' places in the order of their creation, by `id`. The collector's order is another one.
        self.places = {}
        self._count_modules()

    def _count_modules(self):
        module_class, places, numbers = self.torch.nn.Module, self.places, itertools.count()

        # Copies are made without `__init__`.
        def new(cls, *args, **kwargs):
            original = super(module_class, cls).__new__
            made = original(cls) if original is object.__new__ else original(cls, *args, **kwargs)
            places[id(made)] = next(numbers)
            return made

        module_class.__new__ = new

    def _modules(self):
        """Return all modules in the order of their creation."""
        gc.collect()
        # Checks the type, since some objects answer `isinstance` with a warning.
        found = [each for each in gc.get_objects() if issubclass(type(each), self.torch.nn.Module)]
        return sorted(found, key=lambda each: self.places.get(id(each), -1))

    def read(self, optimizer):
        """Return the state's tensors, by keys that wrappers around modules do not change."""
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        numbers = collections.Counter()
        found = {}
        for module in self._modules():
            kind = type(module).__name__
            owner = f"{kind} {numbers[kind]}"
            numbers[kind] += 1
            for name, tensor in (vars(module).get("_buffers") or {}).items():
                if tensor is not None:
                    found[f"{owner} {name}"] = tensor
            for name, tensor in (vars(module).get("_parameters") or {}).items():
                if tensor is not None and id(tensor) not in held and self._has_changed(tensor):
                    found[f"{owner} {name}"] = tensor
        return found

    def _has_changed(self, tensor):
        version = 0 if tensor.is_inference() else tensor._version
        earlier = self.versions.get(id(tensor))
        self.versions[id(tensor)] = version
        return earlier is not None and earlier != version


def settings(optimizer):
    """Return an optimizer's numbers, such as the learning rate, by name."""
    found = {}
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            numbers = [_number(each) for each in values] if name != "params" else [None]
            if numbers and None not in numbers:
                found[f"param_groups[{index}]['{name}']"] = numbers
    return found


def _number(value):
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype") else None


def difference(torch, ours, wanted):
    """Return the largest difference of tensors that both have; None if all are the same.

    What only one of them has is left out: a change may drop a mask that nothing reads any longer.
    """
    worst, tensor, equal = 0.0, None, True
    for name in sorted(wanted.keys() & ours.keys()):
        share, is_rounding = _compare(ours[name].detach(), wanted[name])
        if not share <= worst:
            worst, tensor, equal = share, ours[name], is_rounding
            if share != share:
                break
    return None if tensor is None else Change(name_of(torch, tensor), worst, equal)


def difference_of_updates(torch, parameters, before, wanted):
    """Return the largest difference of updates by an optimizer from the expected ones; None without any."""
    worst = None
    for ours, old, updated in zip(parameters, before, wanted, strict=True):
        if torch.allclose(ours, updated, rtol=0.0, atol=0.0, equal_nan=True):
            continue
        precise = torch.promote_types(updated.dtype, torch.float64)
        new, old, ours_new = (each.detach().to(precise) for each in (updated, old, ours))
        apart, size = float((ours_new - new).norm()), float(new.norm())
        # A parameter cannot hold its update more precisely than itself.
        rounding = tolerance_of(updated) * float((new - old).norm())
        rounding += _ULPS * torch.finfo(updated.dtype).eps * size
        if not apart <= rounding:
            share = apart / max(size, _NEGLIGIBLE * math.sqrt(updated.numel()))
            if worst is None or not share <= worst.share:
                worst = Change(name_of(torch, ours), share, equal=False)
    return worst


def _compare(one, other):
    """Return the relative difference of two tensors, and `True` if it is rounding."""
    if one.shape != other.shape:
        return float("inf"), False
    if one.layout != other.layout or one.is_quantized or not (one.is_floating_point() or one.is_complex()):
        same = one.equal(other)
        return (0.0 if same else 1.0), same
    share = relative_norm(one, other, _NEGLIGIBLE * math.sqrt(other.numel()))
    return share, share <= tolerance_of(other)


def difference_of_settings(ours, wanted):
    """Return the largest difference of settings that both have; None if all are the same."""
    worst = None
    for name in sorted(wanted.keys() & ours.keys()):
        for one, other in zip(ours[name], wanted[name], strict=False):
            if math.isclose(one, other, rel_tol=_SETTING_TOLERANCE) or (one != one and other != other):
                continue
            share = abs(one - other) / abs(other) if other else float("inf")
            if worst is None or share > worst.share:
                worst = Change(name, share, equal=False)
    return worst


def adopt(ours, wanted):
    """Continue with the saved tensors, since rounding differences would grow from step to step."""
    for name in wanted.keys() & ours.keys():
        if ours[name].shape == wanted[name].shape and not ours[name].is_inference():
            ours[name].detach().copy_(wanted[name])


def adopt_updates(parameters, wanted):
    """Continue with the saved parameters, for the same reason."""
    for each, updated in zip(parameters, wanted, strict=True):
        each.detach().copy_(updated)
