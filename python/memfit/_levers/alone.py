"""Checks that an optimizer updates each parameter independently, so that it may step a few parameters at a
time.

PyTorch's optimizers are known. Any other one is tried on small parameters: stepping them one at a time has to
give the same parameters, state and counters as stepping them together. An optimizer that counts steps per
group, or combines all gradients, fails the test.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

# Number of parameters of each group in the trial, their maximum side length, and the number of steps.
_TRIAL_PARAMETERS, _MAX_TRIAL_SIDE, _TRIAL_STEPS = 2, 4, 3
# Attributes of an optimizer that are not settings: hooks and steps of others, and what the trial replaces.
_NOT_SETTINGS = ("state", "param_groups", "step", "zero_grad", "profile_hook_step")
_HOOKS = ("_optimizer_", "_memfit")
_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def plain_step(kind: type) -> Callable[..., Any]:
    """Return the step of a class without the hooks that run around it."""
    step: Any = kind.step  # type: ignore[attr-defined]
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def of_torch(kind: type) -> str:
    """Return the name of the PyTorch class whose step an optimizer uses, or "" if it has its own."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.optim.") and base is not torch.optim.Optimizer:
            same = plain_step(kind) is plain_step(base)
            begins = getattr(kind, "_init_group", None) is getattr(base, "_init_group", None)
            return base.__name__ if same and begins else ""
    return ""


def why_together(optimizer: torch.optim.Optimizer) -> str:
    """Return the reason why an optimizer has to update all of its parameters together, or ""."""
    kind = type(optimizer)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{kind.__name__} with `differentiable=True` updates all parameters together"
    if isinstance(optimizer, torch.optim.LBFGS):
        return f"{kind.__name__} updates all parameters together"
    if of_torch(kind):
        return ""
    if kind.__module__.startswith("bitsandbytes."):
        # Its kernels only run on the GPU. Settings of single parameters are looked up by their position in
        # the groups.
        manager = getattr(optimizer, "mng", None)
        overrides = getattr(manager, "index2config", None) or getattr(
            manager, "module_weight_config_triple", None
        )
        return f"{kind.__name__} has settings for individual parameters" if overrides else ""
    try:
        alike = _tried(optimizer, one_by_one=False) == _tried(optimizer, one_by_one=True)
    except Exception as error:
        return (
            f"{kind.__name__} has a step of its own, and a trial of it on small parameters failed "
            f"({type(error).__name__}: {error})"
        )
    if alike:
        return ""
    return (
        f"{kind.__name__} has a step of its own that uses all parameters together, or counts its steps per "
        "group: stepping a few parameters at a time would give other weights"
    )


def _tried(optimizer: torch.optim.Optimizer, one_by_one: bool) -> Any:
    """Step small parameters a few times; return them and the optimizer's state in a comparable form."""
    with _quietly():
        clone = _small(optimizer)
        parameters = [each for group in clone.param_groups for each in group["params"]]
        groups = [(group, group["params"]) for group in clone.param_groups]
        step = plain_step(type(optimizer))
        numbers = torch.Generator().manual_seed(1)
        for _ in range(_TRIAL_STEPS):
            for parameter in parameters:
                parameter.grad = _numbers(parameter, numbers)
            # From last to first, the order of a backward pass.
            for chosen in [[each] for each in reversed(parameters)] if one_by_one else [parameters]:
                # The CPU generator only: the GPU generators belong to the script.
                torch.default_generator.manual_seed(0)
                for group, members in groups:
                    group["params"] = [each for each in members if any(each is one for one in chosen)]
                step(clone)
            for group, members in groups:
                group["params"] = members
        state = [_comparable(clone.state.get(parameter, {})) for parameter in parameters]
        own = {name: value for name, value in vars(clone).items() if name not in ("state", "param_groups")}
        return _comparable([parameters, clone.param_groups]), state, _comparable(own)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Run without calling hooks, without drawing from the script's generators, and without compiling."""
    module = importlib.import_module("torch.optim.optimizer")
    hooks = [getattr(module, name) for name in _GLOBAL_HOOKS if hasattr(module, name)]
    kept = [list(each.items()) for each in hooks]
    stance = getattr(torch.compiler, "set_stance", None)
    compiles = stance is not None and "torch._dynamo.eval_frame" in sys.modules
    with torch.random.fork_rng(devices=[]), stance("force_eager") if compiles else contextlib.nullcontext():  # type: ignore[misc]
        for each in hooks:
            each.clear()
        try:
            yield
        finally:
            for each, entries in zip(hooks, kept, strict=True):
                each.update(entries)


def _small(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return a copy of the optimizer before its first step, with small parameters on the host."""
    numbers = torch.Generator().manual_seed(0)
    # The state of a wrapper is that of the inner optimizer, and as large.
    memo: dict[int, Any] = {id(optimizer.state): defaultdict(dict)}
    groups = []
    for group in optimizer.param_groups:
        members = []
        for index, parameter in enumerate(group["params"]):
            shape = [min(side, _MAX_TRIAL_SIDE) for side in parameter.shape]
            stand_in = nn.Parameter(
                torch.empty(shape, dtype=parameter.dtype), requires_grad=parameter.requires_grad
            )
            memo[id(parameter)] = stand_in
            if index < _TRIAL_PARAMETERS:
                stand_in.data.copy_(_numbers(stand_in, numbers))
                members.append(stand_in)
        settings = {key: value for key, value in group.items() if key != "params"}
        groups.append({"params": members, **copy.deepcopy(settings, memo)})
    clone: torch.optim.Optimizer = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name.startswith("_optimizer_"):
            clone.__dict__[name] = OrderedDict()
        elif name not in _NOT_SETTINGS and not name.startswith(_HOOKS):
            clone.__dict__[name] = copy.deepcopy(value, memo)
    clone.state = defaultdict(dict)
    clone.param_groups = groups
    return clone


def _numbers(like: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
    drawn = torch.randn((*like.shape, 2), generator=numbers)
    return (torch.view_as_complex(drawn) if like.is_complex() else drawn[..., 0]).to(like.dtype)


def _comparable(value: Any) -> Any:
    """Reduce a value to numbers and strings, in nested lists; other objects compare as equal."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), _comparable(value.detach().tolist())]
    if isinstance(value, dict):
        return [
            _comparable(entry) for key, entry in value.items() if isinstance(key, (str, int, torch.Tensor))
        ]
    if isinstance(value, (list, tuple)):
        return [_comparable(entry) for entry in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value if isinstance(value, (int, float, complex, str, bool)) else None
