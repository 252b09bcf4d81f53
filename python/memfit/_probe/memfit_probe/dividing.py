"""Decides from one step of the script itself if micro-batches train like the whole batch."""

import contextlib
import functools

from .effects import Effects
from .independence import Independence, changed_number
from .inputs import is_compiled, leaves

# With fewer samples, the batch dimension cannot be distinguished from other small dimensions.
MIN_SAMPLES = 3
COMPILED = "the model is compiled, so its operations cannot be followed"
NUMBER = (
    "a number that Python computes changes from one step to the next ({}): if it counts iterations or forward "
    "passes, it counts micro-batches"
)


class Division:
    """Follows the samples of one batch, from the loader to the optimizer's step."""

    def __init__(self, session):
        self.session = session
        self.following = None
        # Other effects of the script in each iteration, besides its step.
        self.effects = Effects(session)
        self._iterator = None

    def forget(self):
        """Reset the state."""
        self.stop()
        self.effects.forget()
        # The reason why one of the step's backward passes proves nothing; None before the first.
        self._why = None
        self._backwards = 0
        # The numbers of the first step, which those of a second one are compared with.
        self._numbers = None
        self._done = False

    def arm(self):
        """Detect values that are read on the host."""
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
        """Start to follow a batch of this many samples, with these tensors in it."""
        planned = self.session.planned
        as_it_is = planned.measures and not planned.levers and len(self.session.optimizers) > 0
        if self._done or not as_it_is or samples < MIN_SAMPLES:
            return
        if self.following is None:
            self.following = Independence(samples, self.effects)
            self.following.__enter__()
        for field in fields:
            self.following.follow(field)

    def given(self, batch, ignores):
        """Record that a loader yielded a batch; with `ignores`, some of its labels do not count in
        the loss.
        """
        self.effects.goes_on()
        iterator = self.session.planned.fetched.iterator
        if iterator is not self._iterator:
            # A new epoch, for which the script may choose other settings.
            self._iterator = iterator
            self.effects.settings_final()
        fields = [
            each for each in leaves(batch, 64) if isinstance(each, self.session.torch.Tensor) and each.dim()
        ]
        if fields:
            self.begin(fields[0].size(0), fields)
        if ignores and self.following is not None:
            self.following.ignores()

    @contextlib.contextmanager
    def aside(self):
        """Do not follow what memfit itself computes from a batch."""
        following = self.following
        if following is None or not following.watching:
            yield
            return
        following.watching = False
        try:
            yield
        finally:
            following.watching = True

    def counted(self, count):
        """Record that a library counted the labels in all micro-batches of a step, by which it divides the
        loss of each.
        """
        if self.following is not None:
            self.following.divides_by(count)

    def backward_begins(self, roots):
        """Check at the start of a backward pass if it begins at a mean over samples."""
        self.effects.goes_on()
        self.effects.gradients_used()
        if self.following is None:
            return
        self._backwards += 1
        if self._numbers is None:
            self._why = self._why or self.following.why_not(roots)
        self._pause()

    def backward_ends(self):
        """Continue after a backward pass, since another loss of the same step may follow."""
        self.effects.gradients_complete()
        if self.following is not None and not self.following.watching:
            self.following.watching = True
            self.following.__enter__()

    def meets(self, model):
        """Give up if a model that is about to be called is compiled."""
        if self.following is not None and is_compiled(model):
            self._why, self._backwards, self._done = COMPILED, 1, True
            self.stop()

    def stepped(self):
        """End at the optimizer's step, if a backward pass was seen."""
        self.effects.steps()
        if self.following is not None and self._backwards:
            self._compare_numbers(self.following.numbers)
            self.stop()

    def _compare_numbers(self, numbers):
        """Compare the numbers of two steps; the first one alone has to be proved."""
        if self._numbers is None and self._why is None:
            self._numbers = numbers
            return
        changed = changed_number(self._numbers, numbers) if self._numbers is not None else None
        self._why = self._why or (changed and NUMBER.format(changed))
        self._done = True

    def ended(self, seen):
        """Start the next batch after an optimizer step, in a script without a loader."""
        if seen:
            self.begin(seen)
        # Last, so that its dispatch mode is the first to end: one that stays below another changes which
        # kernels run.
        self.effects.stepped()

    def stop(self):
        """Stop following."""
        if self.following is not None:
            self._pause()
            self.following = None

    def _pause(self):
        following = self.following
        # If a dispatch mode of the script was entered since, this one stays below it, inactive.
        if following.watching:
            following.watching = False
            if following is self.session.torch.utils._python_dispatch._get_current_dispatch_mode():
                following.__exit__(None, None, None)

    def why_not(self):
        """Return the reason why micro-batches may train differently; "" if they do not, None if no step was
        seen.
        """
        return (self._why or self.effects.why or "") if self._backwards else None
