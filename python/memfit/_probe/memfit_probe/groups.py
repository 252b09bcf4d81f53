"""Limits loops over the result of `unique`, which on the virtual GPU has as many values as elements, because
the real number is unknown.

That is an upper bound for its size, but not for a loop: each iteration would process all elements, and
thousands of iterations take hours on the host. The first iterations stand for all. Where the script, or a
library, raises an error for more values than it expects, `len` is what it expects.
"""

import functools
import sys

from . import at_most

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
    size = tensor.__len__

    @functools.wraps(size)
    def length(self):
        found = size(self)
        if hasattr(self, MARK) and not session.is_compiling():
            return at_most.allowed(sys._getframe(1), found)
        return found

    tensor.__len__ = length
