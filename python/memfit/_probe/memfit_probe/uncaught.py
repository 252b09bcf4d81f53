"""Reports the exception that ended the script."""

import os
import sys

from . import channel, mistakes

HERE = os.path.dirname(os.path.abspath(__file__))


def find():
    """Return the exception, or None."""
    exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return None if isinstance(exception, SystemExit) else exception


def send(exception, oom=False, reached=True, sampled=True):
    """Send its type, message and traceback. `oom` is true if memory ran out. `reached` is false if no assumed
    value can have reached the statement that raised it, `sampled` if nothing of a synthetic data set can.
    """
    import traceback

    kind = type(exception)
    # Without the probe's own frames.
    told = traceback.TracebackException(kind, exception, exception.__traceback__)
    leave_out(told)
    channel.send(
        "exception",
        type=kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        message=str(exception),
        traceback="".join(told.format()),
        program=mistakes.of_the_program(exception),
        oom=oom,
        reached=reached,
        sampled=sampled,
    )


def leave_out(told):
    """Remove the probe's frames from a traceback and its causes."""
    waiting, seen = [told], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(HERE)]
        waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
