"""One optimizer step of the whole batch: which of its pieces are through, and what waits for the last of
them.
"""

import contextlib


class Round:
    """Counts pieces. Whatever is asked of the optimizers in one piece, be it of several of them, has one
    answer.
    """

    def __init__(self, planned):
        self.planned = planned
        # Pieces after which an optimizer was asked to step and did not, and how many of them ended a batch of
        # the loader's.
        self.calls = 0
        self.whole = 0
        # Whether the gradients of pieces are waiting for more.
        self.held = False
        # Whether the piece that is running was counted, and what was said then.
        self.counted = False
        self.closes = True

    def piece_runs(self):
        """Something is computed of a piece: who asks for a step after it asks for the first time."""
        self.counted = False

    def ends(self):
        """Whether the piece that is running is the last of an optimizer step."""
        return self.closes if self.counted else self._ends()

    def asked(self):
        """An optimizer is asked to step: whether it does."""
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
    """A plan's own scaler of losses, where it has one."""

    def __init__(self):
        self.scaler = None
        # Whether the scaler itself is at work now, whose calls are not the script's.
        self.inside = False
        self.stepped = False

    def scale(self, gradient):
        return gradient if self.scaler is None else self.scaler.scale(gradient)

    def begin(self):
        """A backward begins: all optimizers that were to step after the last one have."""
        if self.stepped:
            self.stepped = False
            self._within(self.scaler.update)

    def step(self, optimizer, original):
        if self.scaler is None or not _has_gradients(optimizer):
            return original()
        self.stepped = True
        return self._within(self.scaler.step, optimizer)

    def unscale(self, optimizers):
        """Gradients are about to be looked at."""
        for optimizer in optimizers if self.scaler is not None else ():
            # It was done already.
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
