"""Counts steps of a training that has none of PyTorch's optimizers: the script changes the parameters itself,
or with an optimizer class of its own.
"""

import weakref

from .counting import BY_HAND
from .guard import guarded


class UpdatesByHand:
    """Watches one parameter of the model that is trained."""

    def __init__(self, session):
        self.session = session
        # The model that was called last with gradients on.
        self._model = None
        # A parameter with its version, and the address and version of its gradient, after a backward pass.
        self._after = None

    @guarded
    def called(self, model):
        """Count a step that ended before a forward pass, and record the model."""
        self.count()
        if self._is_needed() and self.session.torch.is_grad_enabled():
            self._model = weakref.ref(model)

    @guarded
    def backward_ended(self):
        """Record a parameter that got a gradient."""
        model = self._model() if self._model is not None and self._is_needed() else None
        if model is not None:
            trained = next(filter(self._has_plain_gradient, model.parameters()), None)
            self._after = None if trained is None else (weakref.ref(trained), *_state(trained))

    @guarded
    def count(self):
        """Count a step if the parameters were updated since the last backward pass."""
        if self._is_needed() and self._were_updated():
            self._after = None
            self.session.completed(self.session.steps.stepped(BY_HAND))

    def _is_needed(self):
        return not self.session.optimizers and self.session.planned is None

    def _has_plain_gradient(self, parameter):
        torch, gradient = self.session.torch, parameter.grad
        return type(gradient) is torch.Tensor and gradient.layout is torch.strided

    def _were_updated(self):
        """Return `True` if the parameter has changed since the backward pass, or its gradient was reset.

        Gradients that accumulate over several backward passes stay as they are until the update.
        """
        if self._after is None:
            return False
        trained, *state = self._after
        parameter = trained()
        return parameter is not None and (
            not self._has_plain_gradient(parameter) or _state(parameter) != tuple(state)
        )


def _state(parameter):
    return parameter._version, parameter.grad.data_ptr(), parameter.grad._version
