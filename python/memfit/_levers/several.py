"""Combines several models that train together: a GAN's two, the towers of a contrastive loss, an actor and
its critic.
"""

from __future__ import annotations

from torch import nn


class Several(nn.Module):
    """The first model's modules under their own names, and each other model under its name.

    Used to find modules; it is never called.
    """

    def __init__(self, first: nn.Module, others: dict[str, nn.Module]) -> None:
        super().__init__()
        self._modules.update(first._modules)
        self._parameters.update(first._parameters)
        self._buffers.update(first._buffers)
        self.others: dict[str, nn.Module] = {}
        for name, model in others.items():
            free, number = name, 2
            while free in self._modules:
                free, number = f"{name}{number}", number + 1
            self._modules[free] = self.others[free] = model
        # In a list, so that the first one is not registered under another name.
        self.models = [first, *others.values()]


def models(model: nn.Module) -> list[nn.Module]:
    """Return the models that are called."""
    return list(model.models) if isinstance(model, Several) else [model]


def named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the models with the prefix of their modules' names."""
    if not isinstance(model, Several):
        return [("", model)]
    return [("", model.models[0]), *((f"{name}.", other) for name, other in model.others.items())]
