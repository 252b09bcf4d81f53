"""Several models that train together, as one: a GAN's two, the towers of a contrastive loss, an actor and its
critic.
"""

from __future__ import annotations

from torch import nn


class Several(nn.Module):
    """The first one's modules are called as they are in it; those of each other one stand behind that one's
    name.

    It is there to be looked through, and is never called.
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
        # In a list, so that the first one is no part of it under yet another name.
        self.models = [first, *others.values()]


def models(model: nn.Module) -> list[nn.Module]:
    """What is called by itself."""
    return list(model.models) if isinstance(model, Several) else [model]


def named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The same, with what stands before the names of its modules."""
    if not isinstance(model, Several):
        return [("", model)]
    return [("", model.models[0]), *((f"{name}.", other) for name, other in model.others.items())]
