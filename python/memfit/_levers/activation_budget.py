"""`activation-budget`: compiled graphs save a share of their activations and recompute the rest.

This is PyTorch's own activation memory budget, set for each graph. Recomputed random numbers would differ and
silently give wrong gradients, so a graph with dropout saves what it would have saved without the lever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._functorch import config as graphs
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass

from .registry import Stage, lever
from .target import CannotApply, Target, Undo

# Fused attention is tagged as random, but only its dropout is.
_DROPOUT = "dropout_p"


@lever("activation-budget", Stage.MODEL, 130)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Have compiled graphs save `value` percent of the activations that they would save."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise CannotApply(name, f"the value must be a percentage between 0 and 100, got {value!r}")
    if not _is_compiled(target):
        raise CannotApply(name, "it limits what compiled graphs save, and no part of the model is compiled")
    before = graphs.activation_memory_budget, inductor.joint_custom_pre_pass
    inductor.joint_custom_pre_pass = _Share(target, value / 100, before[1])

    def undo() -> None:
        graphs.activation_memory_budget, inductor.joint_custom_pre_pass = before

    return undo


def _is_compiled(target: Target) -> bool:
    """Return `True` if the plan or the script compiles a part of the model."""
    return target.compiled is not None or any(
        isinstance(each, torch._dynamo.OptimizedModule) or each._compiled_call_impl is not None
        for each in (*target.models(), *target.model.modules())
        if isinstance(each, nn.Module)
    )


class _Share(CustomGraphPass):
    """Sets the memory budget just before the compiler partitions a joint graph into forward and backward."""

    def __init__(self, target: Target, share: float, before: Any) -> None:
        self.target, self.share, self.before = target, share, before

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.before is not None:
            self.before(graph)
        draws = any(map(_draws, graph.nodes))
        if draws:
            self.target.note(
                "a compiled graph draws random numbers, and PyTorch would draw different ones for recomputed "
                "activations: it saves the same activations as without `activation-budget`"
            )
        graphs.activation_memory_budget = 1.0 if draws else self.share

    def uuid(self) -> Any:
        known = getattr(self.before, "uuid", None)
        if self.before is not None and known is None:
            return None
        return "memfit.activation-budget", self.share, known() if known is not None else None


def _draws(node: torch.fx.Node) -> bool:
    """Return `True` if an operation draws random numbers."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    arguments = operation._schema.arguments
    for place, argument in enumerate(arguments):
        if argument.name == _DROPOUT:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(_DROPOUT)
            return bool(argument.default_value if given is None else given)
    return True
