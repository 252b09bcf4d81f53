"""Spares collections of garbage the objects that importing PyTorch makes, in dry runs.

They are half a million and last as long as the process. Collections while they are made, and those when the
process ends, take a quarter of a short dry run. On a real GPU the collector is left as it is.
"""

import gc
import sys

from . import channel, imports


def arm():
    pause = _Pause()
    imports.around("torch", pause.begin, pause.end)


class _Pause:
    """Collects nothing while PyTorch is imported, nor anything of what is there then."""

    def __init__(self):
        self.held = False

    def begin(self):
        self.held = gc.isenabled() and _is_dry_run() and not _within_function(sys._getframe())
        if self.held:
            gc.disable()

    def end(self):
        if self.held:
            gc.freeze()
            gc.enable()


def _is_dry_run():
    try:
        setup = channel.setup()
    except (OSError, ValueError):
        return False
    return bool(setup["cards"])


def _within_function(frame):
    """Return `True` if a function of the script's is running: objects that it has may become garbage."""
    from .oom import is_library
    from .uncaught import HERE

    while frame is not None:
        code = frame.f_code
        is_ours = is_library(code.co_filename) or code.co_filename.startswith(HERE)
        if code.co_name != "<module>" and not is_ours:
            return True
        frame = frame.f_back
    return False
