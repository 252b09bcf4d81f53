"""`fewer-blocks`: some of the repeated blocks are removed.

Only blocks whose parameters have the same shapes as their neighbour's are removed: the output of
such a block has the shape of its input.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from .blocks import blocks
from .registry import Stage, lever
from .replacing import regroup
from .target import CannotApply, Target, Undo, percentage
from .wrapping import together


@lever("fewer-blocks", Stage.MODEL, 2)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Keep evenly spaced blocks of each sequence: `value` is the percentage; the first block always stays."""
    share = percentage(value, name)
    parents: dict[str, list[str]] = {}
    for path in blocks(target.model):
        parent, _, child = path.rpartition(".")
        parents.setdefault(parent, []).append(child)
    undone = []
    for parent, children in parents.items():
        container = target.model.get_submodule(parent)
        # The entries of a dictionary are used by their names.
        if isinstance(container, (nn.ModuleList, nn.Sequential)):
            dropped = _dropped(container, set(children), share)
            if dropped:
                undone.append(_remove(container, dropped, target))
    if not undone:
        raise CannotApply(name, "the model has no sequence of blocks with equal shapes to remove any from")
    return together(undone)


def _dropped(container: nn.Module, among: set[str], share: int) -> set[str]:
    """Return the names of the blocks to remove."""
    dropped = set()
    for _, row in itertools.groupby(
        container._modules.items(), key=lambda entry: _shape(entry[0], entry[1], among)
    ):
        names = [name for name, _ in row if name in among]
        count = max(1, round(len(names) * share / 100))
        kept = {names[place * len(names) // count] for place in range(count)} if names else set()
        dropped |= set(names) - kept
    return dropped


def _shape(name: str, block: nn.Module | None, among: set[str]) -> Any:
    """Return the properties that two blocks must share for one of them to be removable."""
    if block is None or name not in among:
        return name
    return type(block), tuple((path, each.shape) for path, each in block.named_parameters())


def _remove(container: nn.Module, dropped: set[str], target: Target) -> Undo:
    before = dict(container._modules)
    kept = [(name, block) for name, block in before.items() if name not in dropped]
    counted = all(name.isdigit() for name in before)
    container._modules.clear()
    container._modules.update(
        {(str(place) if counted else name): block for place, (name, block) in enumerate(kept)}
    )
    alive = {id(each) for each in target.model.parameters()}
    gone = [each for name in dropped for each in before[name].parameters() if id(each) not in alive]  # type: ignore[union-attr]
    regrouped = regroup(target.optimizers, {each: [] for each in gone})

    def undo() -> None:
        together(regrouped)()
        container._modules.clear()
        container._modules.update(before)

    return undo
