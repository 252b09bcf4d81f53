"""When a step is complete, and when enough of them are. Knows nothing of torch."""

# An optimizer that no longer steps, or never does, is waited for this many rounds of the busiest one beyond
# those asked for.
PATIENCE = 8


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
        """An optimizer was made."""
        self._counts.setdefault(key, 0)
        self._last_round.setdefault(key, self.rounds)

    def vanished(self, key):
        """An optimizer is gone. What it has counted stays, so that the count never falls."""
        before = self._slowest(self._counts)
        self._counts.pop(key, None)
        self._last_round.pop(key, None)
        self._retired += max(0, before - self._slowest(self._counts))

    def stepped(self, key):
        """An optimizer has stepped; how many steps are complete now is returned."""
        self._counts[key] = self._counts.get(key, 0) + 1
        self._last_round[key] = self.rounds
        return self.complete

    @property
    def rounds(self):
        """Steps of the busiest optimizer."""
        return max(self._counts.values(), default=0)

    @property
    def complete(self):
        """Steps that are complete."""
        rounds, patience = self.rounds, self.asked + PATIENCE
        if self.asked and any(rounds - last >= patience for last in self._last_round.values()):
            waited = {
                key: count for key, count in self._counts.items() if rounds - self._last_round[key] < patience
            }
            return self._retired + min(waited.values(), default=0)
        return self._retired + min(self._counts.values(), default=0)

    @property
    def enough(self):
        """Whether as many as were asked for are complete."""
        return bool(self.asked) and self.complete >= self.asked

    @property
    def any(self):
        """Whether any optimizer exists or has stepped."""
        return bool(self._counts) or self._retired > 0

    def at_the_end(self):
        """Steps that were complete when the script came to its own end: nothing is waited for any more."""
        return self._retired + self._slowest(self._counts)

    @staticmethod
    def _slowest(counts):
        return min((count for count in counts.values() if count), default=0)
