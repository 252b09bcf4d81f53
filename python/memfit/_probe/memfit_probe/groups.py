"""Loops over the values that `unique` found: on the virtual card there are as many as elements, since nobody
knows how many differ.

As a size that is the bound. As a number of rounds it is no answer: each round works on as many elements as
all of them together, and thousands of rounds take the host hours. The first rounds stand for all.
"""

import functools

# Rounds that are run.
MAX_ROUNDS = 8
# The name of the assumption.
ASSUMPTION = b"groups"
MARK = "_memfit_unknown_groups"


def mark(result):
    """Notes that nobody knows the values that an operator found, nor how many they are."""
    values = result[0] if isinstance(result, (list, tuple)) else result
    setattr(values, MARK, True)


def arm(session, known):
    """Cuts loops over such values."""
    tensor = session.torch.Tensor
    original = tensor.__iter__

    @functools.wraps(original)
    def rounds(self):
        if hasattr(self, MARK) and len(self) > MAX_ROUNDS and not session.is_compiling():
            known.assumed(ASSUMPTION)
            return original(self[:MAX_ROUNDS])
        return original(self)

    tensor.__iter__ = rounds
