"""Reports the exception that ended the script, raised out of it or handled by leaving."""

import builtins
import functools
import os
import sys
import threading

from . import channel, fetched, mistakes, network, releases, synthetic_data

HERE = os.path.dirname(os.path.abspath(__file__))


def find():
    """Return the exception, or None."""
    exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return None if isinstance(exception, SystemExit) else exception


_left = None


def watch_exits():
    """Remember the error that the script's own code was handling when it left as if all were well."""
    for holder, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        original = getattr(holder, name, None)
        if original is not None:
            setattr(holder, name, _watched(original))


def _watched(original):
    from .oom import is_library

    @functools.wraps(original)
    def leave(*args):
        global _left
        handled = sys.exc_info()[1]
        own = not is_library(sys._getframe(1).f_code.co_filename)
        if own and isinstance(handled, Exception) and threading.current_thread() is threading.main_thread():
            # A status that tells of a failure comes with a last line of the script's own.
            _left = None if args and args[0] else handled
        return original(*args)

    return leave


def left_with():
    """Return the error that the script was handling when it left with status 0, or None."""
    return _left


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
        data_set=synthetic_data.lacking(exception),
        weights=fetched.lacking(exception),
        unreached=network.unreached(),
        gone=releases.lacking(exception),
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
