"""Limits loops over the result of `unique`, which on the virtual GPU has as many values as elements, because
the real number is unknown.

That is an upper bound for its size, but not for a loop: each iteration would process all elements, and
thousands of iterations take hours on the host. The first iterations stand for all.
"""

import functools

# Maximum number of iterations.
MAX_ROUNDS = 8
# The name of the assumption.
ASSUMPTION = b"groups"
MARK = "_memfit_unknown_groups"


def mark(result):
    """Mark an operator's result whose values and length are unknown."""
    values = result[0] if isinstance(result, (list, tuple)) else result
    setattr(values, MARK, True)


def arm(session, known):
    """Limit loops over marked tensors."""
    tensor = session.torch.Tensor
    original = tensor.__iter__

    @functools.wraps(original)
    def rounds(self):
        if hasattr(self, MARK) and len(self) > MAX_ROUNDS and not session.is_compiling():
            known.assumed(ASSUMPTION)
            return original(self[:MAX_ROUNDS])
        return original(self)

    tensor.__iter__ = rounds
