"""Whether parts of a batch train as the whole batch does: as one step of the script itself shows it."""

import functools

from .independence import Independence
from .inputs import is_compiled, leaves

# Of fewer samples nothing can be told: other dimensions are as small.
LEAST_SAMPLES = 3
COMPILED = "the model is compiled, and what it computes is not seen"


class Division:
    """Follows the samples of one batch, from where they come up to the optimizer's step."""

    def __init__(self, session):
        self.session = session
        self.following = None

    def forget(self):
        """Nothing has happened yet."""
        self.stop()
        # What one of the step's backwards does not show; nothing shown at all before the first.
        self._why = None
        self._backwards = 0
        self._done = False

    def arm(self):
        """Numbers that are read on the host are seen where they are read."""
        for name in ("numpy", "tolist", "__array__"):
            self._arm_reading(name)

    def _arm_reading(self, name):
        kind, division = self.session.torch.Tensor, self
        original = getattr(kind, name)

        @functools.wraps(original)
        def read(tensor, *args, **kwargs):
            if division.following is not None:
                division.following.read(tensor)
            return original(tensor, *args, **kwargs)

        setattr(kind, name, read)

    def begin(self, samples, fields=()):
        """A batch of so many samples begins, with these tensors in it."""
        planned = self.session.planned
        as_it_is = planned.measures and not planned.levers and len(self.session.optimizers) > 0
        if self._done or not as_it_is or samples < LEAST_SAMPLES:
            return
        if self.following is None:
            self.following = Independence(samples)
            self.following.__enter__()
        for field in fields:
            self.following.follow(field)

    def given(self, batch, ignores):
        """A loader gives a batch, some of whose labels may be left out of the loss."""
        fields = [
            each for each in leaves(batch, 64) if isinstance(each, self.session.torch.Tensor) and each.dim()
        ]
        if fields:
            self.begin(fields[0].size(0), fields)
        if ignores and self.following is not None:
            self.following.ignores()

    def backward_begins(self, roots):
        """A backward begins: of a mean over samples, or of something else."""
        if self.following is None:
            return
        self._backwards += 1
        self._why = self._why or self.following.why_not(roots)
        self._pause()

    def backward_ends(self):
        """Another loss of the same step may follow."""
        if self.following is not None and not self.following.watching:
            self.following.watching = True
            self.following.__enter__()

    def meets(self, model):
        """A model is about to be called: of a compiled one nothing can be followed."""
        if self.following is not None and is_compiled(model):
            self._why, self._backwards, self._done = COMPILED, 1, True
            self.stop()

    def stepped(self):
        """The optimizer steps: all of the step was seen, if any of it was."""
        if self.following is not None and self._backwards:
            self._done = True
            self.stop()

    def ended(self, seen):
        """The optimizer's step is over. A script that makes its batches itself, of as many samples as were
        seen, makes the next one from here on.
        """
        if seen:
            self.begin(seen)

    def stop(self):
        """Look no more."""
        if self.following is not None:
            self._pause()
            self.following = None

    def _pause(self):
        following = self.following
        # Where a mode of the script's own began since and goes on, it stays below that, and looks no more.
        if following.watching:
            following.watching = False
            if following is self.session.torch.utils._python_dispatch._get_current_dispatch_mode():
                following.__exit__(None, None, None)

    def why_not(self):
        """Why parts are not known to train as the whole; empty where they are, None if no step was seen."""
        return (self._why or "") if self._backwards else None
