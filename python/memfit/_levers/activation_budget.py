"""`activation-budget`: of what a compiled graph would keep for its backward, the compiler keeps a share and
computes the rest again.

It is PyTorch's own budget, set graph by graph. What draws random numbers would be computed again with other
ones, and gradients would be silently wrong, so a graph with dropout keeps what it would have kept.
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

# Fused attention is marked as drawing random numbers, which it does for dropout alone.
_DROPOUT = "dropout_p"


@lever("activation-budget", Stage.MODEL, 130)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Have compiled graphs keep a share: `value` is how many hundredths of what they would keep."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise CannotApply(name, f"it takes hundredths of what would be kept, and not {value!r}")
    if not _is_compiled(target):
        raise CannotApply(name, "it says what compiled graphs keep, and nothing of the model is compiled")
    before = graphs.activation_memory_budget, inductor.joint_custom_pre_pass
    inductor.joint_custom_pre_pass = _Share(target, value / 100, before[1])

    def undo() -> None:
        graphs.activation_memory_budget, inductor.joint_custom_pre_pass = before

    return undo


def _is_compiled(target: Target) -> bool:
    """Whether the plan or the script compiles something of the model."""
    return target.compiled is not None or any(
        isinstance(each, torch._dynamo.OptimizedModule) or each._compiled_call_impl is not None
        for each in (*target.models(), *target.model.modules())
        if isinstance(each, nn.Module)
    )


class _Share(CustomGraphPass):
    """Says how much is kept to whoever cuts a graph of forward and backward in two, just before that."""

    def __init__(self, target: Target, share: float, before: Any) -> None:
        self.target, self.share, self.before = target, share, before

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.before is not None:
            self.before(graph)
        draws = any(map(_draws, graph.nodes))
        if draws:
            self.target.note(
                "a compiled graph draws random numbers, which PyTorch would draw anew for what is computed again: it keeps "
                "what it would have kept without `activation-budget`"
            )
        graphs.activation_memory_budget = 1.0 if draws else self.share

    def uuid(self) -> Any:
        known = getattr(self.before, "uuid", None)
        if self.before is not None and known is None:
            return None
        return "memfit.activation-budget", self.share, known() if known is not None else None


def _draws(node: torch.fx.Node) -> bool:
    """Whether an operation's result is another one each time."""
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
