"""Counts complete training steps. Does not use torch."""

# Rounds of the busiest optimizer, beyond the requested steps, after which one that does not step is ignored.
MAX_IDLE_ROUNDS = 8
# Key of updates that the script makes without an optimizer of PyTorch's.
BY_HAND = "by hand"


class StepCounter:
    """Counts optimizer steps of any number of optimizers.

    With several (a generator's and a discriminator's, one for each parameter in an optimizer-in-backward), a
    step is complete when the slowest of them has stepped. Optimizers that exist and have not stepped yet hold
    the count at zero, for some time: they may be the second half of the first step, or never step at all.
    """

    def __init__(self, asked):
        self.asked = asked
        self._counts = {}
        self._last_round = {}
        self._retired = 0

    def appeared(self, key):
        """Add an optimizer that was created. Its steps are counted instead of updates by hand."""
        self._counts.pop(BY_HAND, None)
        self._last_round.pop(BY_HAND, None)
        self._counts.setdefault(key, 0)
        self._last_round.setdefault(key, self.rounds)

    def vanished(self, key):
        """Remove an optimizer that was deleted. Its count is kept, so that the total never falls."""
        before = self._slowest(self._counts)
        self._counts.pop(key, None)
        self._last_round.pop(key, None)
        self._retired += max(0, before - self._slowest(self._counts))

    def stepped(self, key):
        """Count a step, and return the number of complete steps."""
        self._counts[key] = self._counts.get(key, 0) + 1
        self._last_round[key] = self.rounds
        return self.complete

    @property
    def rounds(self):
        """Number of steps of the busiest optimizer."""
        return max(self._counts.values(), default=0)

    @property
    def complete(self):
        """Number of complete steps."""
        rounds, patience = self.rounds, self.asked + MAX_IDLE_ROUNDS
        if self.asked and any(rounds - last >= patience for last in self._last_round.values()):
            waited = {
                key: count for key, count in self._counts.items() if rounds - self._last_round[key] < patience
            }
            return self._retired + min(waited.values(), default=0)
        return self._retired + min(self._counts.values(), default=0)

    @property
    def enough(self):
        """`True` if the requested number of steps is complete."""
        return bool(self.asked) and self.complete >= self.asked

    @property
    def any(self):
        """`True` if any optimizer exists or has stepped."""
        return bool(self._counts) or self._retired > 0

    def at_the_end(self):
        """Return the number of complete steps at the end of the script, when no optimizer is waited for."""
        return self._retired + self._slowest(self._counts)

    @staticmethod
    def _slowest(counts):
        return min((count for count in counts.values() if count), default=0)
