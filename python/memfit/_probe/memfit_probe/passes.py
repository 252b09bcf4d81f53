"""Forward passes of whole models, for scripts without training."""

import weakref

from . import channel
from .identity import ByIdentity


class Passes:
    """Counts the passes of each model, and reports the end of each round."""

    def __init__(self, session):
        self.session = session
        # Passes of the model that was called most often.
        self.most = 0
        self._counts = ByIdentity()
        # If several models take turns, the first one that is called again marks the round.
        self._leader = None

    def mark(self):
        """Send the time at which a pass ends, or the first one begins."""
        watch = self.session.watch
        clock = watch.clock() if watch is not None else None
        if clock is not None:
            channel.send("pass", clock=clock)

    def passed(self, model):
        """Record a pass of a model."""
        session = self.session
        passes = self._counts.put(model, self._counts.get(model, 0) + 1)
        self.most = max(self.most, passes)
        if self._ends_a_round(model, passes):
            self.mark()
        asked = session.setup.get("forward_steps", 0)
        if asked and passes >= asked and not session.steps.any:
            session.finish("steps")

    def _ends_a_round(self, model, passes):
        session = self.session
        if session.planned is not None:
            return not session.optimizers and not session.torch.is_grad_enabled()
        if self._leader is None and passes == 2:
            self._leader = weakref.ref(model)
        return self._leader is not None and self._leader() is model and not session.had_backward
