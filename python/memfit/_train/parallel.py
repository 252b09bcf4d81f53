"""Tensor parallelism: ranks that share one batch and run collectives inside the layers.

These are DTensor's functional collectives. They are recorded like FSDP2's, so that a rank that fails can take
part in the remaining ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import _functional_collectives as funcol

# DTensor's names for them in the PyTorch releases so far.
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
    """One functional collective, with everything another rank needs to take part in it."""

    function: Callable[..., Any]
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    rest: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def take_part(self) -> None:
        """Take part with zeros, so that the other ranks can complete it."""
        inputs = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        funcol.wait_tensor(self.function(inputs, *self.rest, **dict(self.keywords)))


def follow(announce: Callable[[Any], None]) -> Callable[[], None]:
    """Call `announce` before each functional collective begins. Returns a function that undoes this."""
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
            # Some collectives call another one; only the outer one is announced.
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
    """Return the norm of all gradients. It is computed per mesh, because tensors of different meshes cannot
    be added.
    """
    squares: list[torch.Tensor] = []
    for gradients in by_mesh(parameters).values():
        one = nn.utils.get_total_norm([each.grad for each in gradients])
        whole = one.full_tensor() if hasattr(one, "full_tensor") else one
        # The square of a half-precision norm overflows.
        squares.append((whole if whole.dtype == torch.float64 else whole.float()) ** 2)
    squares = [each.to(squares[0].dtype) for each in squares]
    return torch.stack([each.to(squares[0].device) for each in squares]).sum().sqrt()


def by_mesh(parameters: Iterable[torch.Tensor]) -> dict[Any, list[torch.Tensor]]:
    """Group the parameters that have gradients by their device mesh."""
    found: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            found.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    return found


def clip(parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
    """Clip the gradients to a norm over all of them, across meshes."""
    parameters = list(parameters)
    total = norm(parameters)
    for some in by_mesh(parameters).values():
        nn.utils.clip_grads_with_norm_(some, most, total)
    return total


def largest_mesh(model: nn.Module) -> int:
    """Return the number of ranks of the model's largest device mesh."""
    meshes = [int(each.device_mesh.size()) for each in model.parameters() if hasattr(each, "device_mesh")]
    return max(meshes, default=1)
