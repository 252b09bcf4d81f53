"""Reports the exception that ended the script, raised out of it or handled by leaving."""

import builtins
import functools
import os
import sys
import threading

from . import channel, fetched, folders, lacking_data, mistakes, network, releases

HERE = os.path.dirname(os.path.abspath(__file__))


def find():
    """Return the exception, or None."""
    exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return None if isinstance(exception, SystemExit) else exception


# The error that was being handled when the script left, and whether its status told of a failure.
_left, _failed = None, False


def watch_exits():
    """Remember the error that the script's own code was handling when it left as if all were well, or that a
    library was, with the status of a failure, after it had passed through the script's own code.
    """
    for holder, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        original = getattr(holder, name, None)
        if original is not None:
            setattr(holder, name, _watched(original))


def _watched(original):
    from .oom import is_library

    @functools.wraps(original)
    def leave(*args):
        global _left, _failed
        handled = sys.exc_info()[1]
        if isinstance(handled, Exception) and threading.current_thread() is threading.main_thread():
            failed, own = bool(args and args[0]), not is_library(sys._getframe(1).f_code.co_filename)
            # A failure of which the script's own code tells comes with a last line of its own.
            _left = handled if own is not failed and (own or _is_from_script(handled)) else None
            _failed = failed
        return original(*args)

    return leave


def _is_from_script(exception):
    """Return `True` if an exception left the script's own code."""
    from .oom import is_library

    traceback = exception.__traceback__
    while traceback is not None:
        if not is_library(traceback.tb_frame.f_code.co_filename):
            return True
        traceback = traceback.tb_next
    return False


def left_with(steps):
    """Return the error that was being handled when the script left after so many steps, or None: a script
    that has trained and leaves with status 0 did not fail.
    """
    return _left if _failed or not steps else None


def send(exception, oom=False, reached=True, sampled=True, loaded=True):
    """Send its type, message and traceback. `oom` is true if memory ran out. `reached` is false if no assumed
    value can have reached the statement that raised it, `sampled` if nothing of a synthetic data set can, and
    `loaded` if no synthetic weights can.
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
        loaded=loaded,
        data_set=lacking_data.lacking(exception),
        weights=fetched.lacking(exception),
        unreached=network.unreached(),
        folder=folders.last_absent(),
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
