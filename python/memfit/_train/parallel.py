"""Tensor parallelism: ranks that share one batch, and whose collectives stand inside the layers.

These are DTensor's functional ones. They are followed like FSDP2's: a rank that fails takes part in what is
left of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import _functional_collectives as funcol

# What DTensor calls them, in the releases that there are.
_NAMES = (
    "all_reduce",
    "all_gather_single",
    "all_gather_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_to_all_single",
)


@dataclass(frozen=True)
class Functional:
    """One of them, as far as another rank has to know it."""

    function: Callable[..., Any]
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    rest: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def take_part(self) -> None:
        """Let the other ranks get through it."""
        inputs = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        funcol.wait_tensor(self.function(inputs, *self.rest, **dict(self.keywords)))


def follow(announce: Callable[[Any], None]) -> Callable[[], None]:
    """Have each functional collective announced before it begins; what undoes it."""
    inner = {name: getattr(funcol, name) for name in _NAMES if hasattr(funcol, name)}
    depth = 0

    def announced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def collective(inputs: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
            nonlocal depth
            if depth == 0:
                announce(
                    Functional(
                        function, inputs.shape, inputs.dtype, inputs.device, rest, tuple(keywords.items())
                    )
                )
            # Some of them call another one.
            depth += 1
            try:
                return function(inputs, *rest, **keywords)
            finally:
                depth -= 1

        return collective

    for name, function in inner.items():
        setattr(funcol, name, announced(function))

    def undo() -> None:
        for name, function in inner.items():
            setattr(funcol, name, function)

    return undo


def norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """The norm of all gradients: of those on one mesh together, since a tensor of one mesh does not add to
    another's.
    """
    squares: list[torch.Tensor] = []
    for gradients in by_mesh(parameters).values():
        one = nn.utils.get_total_norm([each.grad for each in gradients])
        squares.append((one.full_tensor() if hasattr(one, "full_tensor") else one).float() ** 2)
    return torch.stack([each.to(squares[0].device) for each in squares]).sum().sqrt()


def by_mesh(parameters: Iterable[torch.Tensor]) -> dict[Any, list[torch.Tensor]]:
    """Parameters that have gradients, by the mesh that they lie on."""
    found: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            found.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    return found


def clip(parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
    """Clip the gradients to a norm over all of them, whatever mesh they lie on."""
    parameters = list(parameters)
    total = norm(parameters)
    for some in by_mesh(parameters).values():
        nn.utils.clip_grads_with_norm_(some, most, total)
    return total


def largest_mesh(model: nn.Module) -> int:
    """On how many ranks the model lies."""
    meshes = [int(each.device_mesh.size()) for each in model.parameters() if hasattr(each, "device_mesh")]
    return max(meshes, default=1)
