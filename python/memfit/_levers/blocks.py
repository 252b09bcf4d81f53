"""The repeated blocks of a model: what levers that act block by block act on."""

from __future__ import annotations

from collections import Counter

from torch import nn

from .several import named

# Fewer blocks of a kind are no repetition.
LEAST = 2


def blocks(model: nn.Module) -> list[str]:
    """The outermost modules of which a list or a sequence holds several of one class, in order.

    A model that shares one block between its layers, as ALBERT does, has a list with one entry: where no
    list has several, those of one entry count.
    """
    return _in_lists(model, LEAST) or _in_lists(model, 1, (nn.ModuleList,))


def _in_lists(
    model: nn.Module,
    least: int,
    lists: tuple[type[nn.Module], ...] = (nn.ModuleList, nn.Sequential, nn.ModuleDict),
) -> list[str]:
    found: list[str] = []

    def walk(module: nn.Module, prefix: str) -> None:
        kinds = Counter(type(child) for child in module.children() if _is_block(child))
        listed = isinstance(module, lists)
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            # Blocks of another class in the same list, as a first one with a projection, belong to it.
            if listed and _is_block(child) and kinds[type(child)] >= least:
                found.append(path)
            else:
                walk(child, f"{path}.")

    for prefix, each in named(model):
        walk(each, prefix)
    return found


def _is_block(module: nn.Module) -> bool:
    """Whether there is something within that is worth a block: several modules, and parameters."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return False
    return any(True for _ in module.children()) and any(True for _ in module.parameters())
