"""One optimizer step of the whole batch: counts its micro-batches, and holds calls back until the
last one.
"""

import contextlib


class Round:
    """Counts micro-batches. All optimizers that step in the same micro-batch get the same answer."""

    def __init__(self, planned):
        self.planned = planned
        # Micro-batches after which a step was held back, and how many of them ended a batch of the loader.
        self.calls = 0
        self.whole = 0
        # Set while gradients are accumulated and more are to come.
        self.held = False
        # Set once the current micro-batch is counted, and the answer given then.
        self.counted = False
        self.closes = True

    def piece_runs(self):
        """Start a micro-batch: the next step request is its first."""
        self.counted = False

    def ends(self):
        """Return `True` if the current micro-batch is the last of an optimizer step."""
        return self.closes if self.counted else self._ends()

    def asked(self):
        """Handle a step request: return `True` if the optimizer steps."""
        if not self.counted:
            self.closes = self._ends()
            self.counted = True
            self.held = not self.closes
            piece = self.planned.fetched.piece
            if self.closes:
                self.calls = self.whole = 0
                self.planned.steps += 1
            else:
                self.calls += 1
                self.whole += piece is not None and piece.last
        return self.closes

    def _ends(self):
        planned = self.planned
        piece = planned.fetched.piece
        if planned.by_name:
            return self.calls + 1 >= planned.pieces() * planned.accumulate
        if piece is None or planned.micro_batch is None:
            return True
        if planned.own > 1:
            pieces = -(-piece.batch // planned.micro_batch)
            pieces = min(pieces, planned.most) if planned.most else pieces
            return self.calls + 1 >= pieces * planned.accumulate
        return piece.last and self.whole + 1 >= planned.accumulate


class Scaling:
    """A plan's own gradient scaler, if it has one."""

    def __init__(self):
        self.scaler = None
        # Set while the scaler itself runs, whose calls are not the script's.
        self.inside = False
        self.stepped = False

    def scale(self, gradient):
        return gradient if self.scaler is None else self.scaler.scale(gradient)

    def begin(self):
        """Update the scale at the start of a backward pass, when all optimizers have stepped."""
        if self.stepped:
            self.stepped = False
            self._within(self.scaler.update)

    def step(self, optimizer, original):
        if self.scaler is None or not _has_gradients(optimizer):
            return original()
        self.stepped = True
        return self._within(self.scaler.step, optimizer)

    def unscale(self, optimizers):
        """Unscale gradients before they are read."""
        for optimizer in optimizers if self.scaler is not None else ():
            # Already unscaled.
            with contextlib.suppress(RuntimeError):
                self._within(self.scaler.unscale_, optimizer)

    def _within(self, call, *args):
        self.inside = True
        try:
            return call(*args)
        finally:
            self.inside = False


def _has_gradients(optimizer):
    return any(
        parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]
    )
