"""Finds the repeated blocks of a model, on which several levers act."""

from __future__ import annotations

from collections import Counter

from torch import nn

from .several import named

# Minimum number of blocks of one class in a list.
MIN_BLOCKS = 2


def blocks(model: nn.Module) -> list[str]:
    """Return the outermost modules that occur several times with one class in a list or a sequence, in order.

    A model that shares one block between its layers, such as ALBERT, has a list with one entry. If no list
    has several blocks, lists with one entry count.
    """
    return _in_lists(model, MIN_BLOCKS) or _in_lists(model, 1, (nn.ModuleList,))


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
            # Blocks of another class in the same list belong to it, such as a first one with a projection.
            if listed and _is_block(child) and kinds[type(child)] >= least:
                found.append(path)
            else:
                walk(child, f"{path}.")

    for prefix, each in named(model):
        walk(each, prefix)
    return found


def _is_block(module: nn.Module) -> bool:
    """Return `True` if a module is large enough for a block: it has submodules and parameters, and is called.
    A list has no forward pass, nor has a plain `nn.Module()` that holds the blocks of a U-Net's level.
    """
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        return False
    return any(True for _ in module.children()) and any(True for _ in module.parameters())
