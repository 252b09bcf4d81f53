"""Forward passes of whole models: their number, for scripts without training, and their batch sizes."""

import weakref

from . import channel
from .by_hand import UpdatesByHand
from .identity import ByIdentity
from .inputs import first_dimension


class Passes:
    """Counts the passes of each model, and reports the end of each round."""

    def __init__(self, session):
        self.session = session
        # Passes of the model that was called most often.
        self.most = 0
        # The model that was called last in a training run, with the first dimension of its input.
        self._called = (None, 0)
        # The same when memory ran out for the first time, and the largest number since the last
        # time.
        self._failed = None
        self._largest_since = 0
        self._counts = ByIdentity()
        self.by_hand = UpdatesByHand(session)
        # Set if `nn.DataParallel` runs the model on several GPUs.
        self._copies_to_all = False
        # If several models take turns, the first one that is called again marks the round.
        self._leader = None

    def mark(self):
        """Send the time at which a pass ends, or the first one begins."""
        watch = self.session.watch
        clock = watch.clock() if watch is not None else None
        if clock is not None:
            channel.send("pass", clock=clock)

    def began(self, model):
        """Record that a pass of a whole model begins, and remark on one that is copied to several GPUs."""
        self.by_hand.called(model)
        if not self._copies_to_all and isinstance(model, self.session.torch.nn.DataParallel):
            self._copies_to_all = len(model.device_ids) > 1
            if self._copies_to_all:
                channel.remark("data-parallel")

    def called(self, model, arguments):
        """Record the arguments of a model."""
        if not self.session.torch.is_grad_enabled():
            return
        samples = first_dimension(self.session.torch, arguments)
        self._called = (weakref.ref(model), samples)
        if self._failed is not None and self._failed[0]() is model:
            self._largest_since = max(self._largest_since, samples)

    def ran_out(self):
        """Record that memory ran out."""
        if self._called[0] is not None:
            self._failed = self._failed or self._called
            self._largest_since = 0

    def reduced(self):
        """Return the samples for which memory ran out first and those that the model got after the last time,
        if they were fewer.
        """
        if self._failed is None or not 0 < self._largest_since < self._failed[1]:
            return None
        return [self._failed[1], self._largest_since]

    def passed(self, model, output=None):
        """Record a pass of a model on the GPU."""
        session = self.session
        if on_the_host(session.torch, model, output):
            return
        passes = self._counts.store(model, self._counts.get(model, 0) + 1)
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
        if self._leader is None or self._leader() is not model:
            return False
        # With an optimizer, its steps mark the time. Without one, a pass and its gradients are a round.
        return not (session.had_backward and session.optimizers)


def on_the_host(torch, model, output):
    """Return `True` for a pass that never used a GPU, as of a transform with weights in a loader's worker.

    Weights that are offloaded are on the host between passes, so its output must be there too.
    """
    if not torch.cuda.is_initialized():
        return True
    if any(each.device.type != "cpu" for each in model.parameters()):
        return False
    if isinstance(output, dict):
        output = list(output.values())
    values = output if isinstance(output, (tuple, list)) else (output,)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(value.device.type == "cpu" for value in tensors)
