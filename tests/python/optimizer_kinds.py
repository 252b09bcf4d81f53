"""Optimizers as people write them: some update each parameter by itself, and some do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Each parameter by itself, with a step of its own."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.sub_((0.9 * average + 0.1 * parameter.grad).sign() * group["lr"])
                average.lerp_(parameter.grad, 0.01)


class Inherited(torch.optim.AdamW):
    """PyTorch's step under another name."""


class Around(torch.optim.AdamW):
    """PyTorch's step, with additional work."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class CountsInGroup(torch.optim.SGD):
    """As D-Adaptation, Prodigy, Ranger and schedule-free optimizers count."""

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * group["lr"] / group["k"])


class CountsItself(torch.optim.SGD):
    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        self.count = getattr(self, "count", 0) + 1
        if self.count % 2:
            super().step()


class GlobalNorm(torch.optim.SGD):
    """Clips within its step."""

    def step(self, _closure: Any = None) -> None:
        parameters = [each for group in self.param_groups for each in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, 0.01)
        super().step()


class KeepsList(torch.optim.SGD):
    """Goes by a list of its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.all = list(self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for parameter in self.all:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad * self.param_groups[0]["lr"])


class CannotBeCopied(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.handle = (each for each in ())

    def step(self, _closure: Any = None) -> None:
        super().step()


Make = Callable[[Any], torch.optim.Optimizer]
ALONE: dict[str, Make] = {
    "own": lambda params: Lion(params, lr=0.01),
    "inherited": lambda params: Inherited(params, lr=0.01),
    "around": lambda params: Around(params, lr=0.01),
}
TOGETHER: dict[str, Make] = {
    "counts in its group": lambda params: CountsInGroup(params, lr=0.1),
    "counts itself": lambda params: CountsItself(params, lr=0.1),
    "global norm": lambda params: GlobalNorm(params, lr=0.1),
    "list of its own": lambda params: KeepsList(params, lr=0.1),
    "cannot be copied": lambda params: CannotBeCopied(params, lr=0.1),
    "LBFGS": lambda params: torch.optim.LBFGS(params),
    "differentiable": lambda params: torch.optim.SGD(params, lr=0.1, differentiable=True),
}
OF_TORCH: dict[str, Make] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "SGD momentum": lambda params: torch.optim.SGD(
        params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "SGD maximize": lambda params: torch.optim.SGD(
        params, lr=0.1, maximize=True, dampening=0.1, momentum=0.5
    ),
    "SGD fused": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    "Adam amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "AdamW foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "AdamW tensor rate": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01), foreach=False),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=0.01, decoupled_weight_decay=True),
    "RAdam": lambda params: torch.optim.RAdam(params, lr=0.01),
    "Adamax": lambda params: torch.optim.Adamax(params, lr=0.01),
    "Adagrad": lambda params: torch.optim.Adagrad(
        params, lr=0.1, initial_accumulator_value=0.5, lr_decay=0.1
    ),
    "Adadelta": lambda params: torch.optim.Adadelta(params, lr=1.0),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01, centered=True, momentum=0.9),
    "Rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=0.1, t0=1.0),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=0.1),
}
