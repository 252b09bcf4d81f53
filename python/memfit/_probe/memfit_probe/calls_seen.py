"""Records the lines of the user's files that lead to work on a GPU.

Python's own tracing would know every line, but until Python 3.11 it keeps the variables of each function
alive, and with them tensors. So only certain operations are seen: a model's forward pass, moving or copying
a model, a backward pass, and creating or extending an optimizer.
"""

import copy
import functools
import os
import sys

from .oom import is_library
from .uncaught import HERE

# The folder of memfit's own packages.
OURS = os.path.dirname(HERE) + os.sep


class CallsSeen:
    """Lines that were on the stack during one of these operations, by file."""

    def __init__(self):
        self.lines = {}

    def forget(self):
        """Reset the state in a forked child."""
        self.lines.clear()

    def arm(self, torch):
        for owner, name in (
            (torch.nn.Module, "_apply"),
            (torch.nn.Module, "requires_grad_"),
            (torch.autograd, "backward"),
            (torch.optim.Optimizer, "__init__"),
            (torch.optim.Optimizer, "add_param_group"),
            (copy, "deepcopy"),
        ):
            setattr(owner, name, self._recording(getattr(owner, name), torch.compiler.is_compiling))

    def _recording(self, original, is_compiling):
        @functools.wraps(original)
        def call(*args, **kwargs):
            if not is_compiling():
                self.record()
            return original(*args, **kwargs)

        return call

    def record(self):
        """Record the lines that lead here."""
        frame = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if is_own(path):
                self.lines.setdefault(path, set()).add(frame.f_lineno)
            frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def is_own(path):
    """Return `True` if the user wrote this file."""
    return not path.startswith(OURS) and not is_library(path)
