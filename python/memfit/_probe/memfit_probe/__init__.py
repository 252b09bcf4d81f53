"""The probe: watches a training script from inside, without changing it.

`memfit run` installs it, so it must work in any interpreter that has torch, with nothing but the standard
library. It must not import torch: it is activated when the script does. Its findings go two ways: labels and
owners of memory into the event log, through the watcher library (`watch`), and structured facts as lines of
JSON (`channel`).

An error in the probe must never end the script: everything it does in the script's own calls runs under
`guarded`.
"""

import atexit
import os

_started = False
_met_torch = False
_crash_file = None


def start():
    """Send the first message, and wait for torch to be imported."""
    global _started
    if _started:
        return
    _started = True
    _watch_for_signals()
    from . import channel, garbage, imports, math_calls

    changed = os.path.join(os.environ["MEMFIT_RUN_DIR"], "edits.json")
    if os.path.isfile(changed):
        from . import edits

        edits.arm(changed)

    world = channel.number("WORLD_SIZE")
    if os.environ.get("MEMFIT_LONE_RANK"):
        from . import lone

        lone.arm()
        # The runner waits only for the ranks that exist.
        world = 1
    channel.send_hello(channel.number("RANK"), world)
    math_calls.arm()
    garbage.arm()
    atexit.register(_report_without_torch)
    imports.after("torch", _torch_is_here)


def _watch_for_signals():
    """Leave behind the line of Python that a signal interrupts: a fatal one, or the runner's."""
    global _crash_file
    import faulthandler
    import signal

    path = os.path.join(os.environ["MEMFIT_RUN_DIR"], f"crash-{os.getpid()}.txt")
    _crash_file = open(path, "w")  # noqa: SIM115 - it stays open until the process ends
    if not faulthandler.is_enabled():
        faulthandler.enable(_crash_file, all_threads=False)
    # The runner sends this one when time is up. No library uses it.
    faulthandler.register(signal.SIGRTMAX - 6, _crash_file, all_threads=False)


def _torch_is_here(torch):
    global _met_torch
    _met_torch = True
    from . import session

    session.begin(torch)


def _report_without_torch():
    """Report the exception that ended a script before it had imported torch."""
    if _met_torch:
        return
    from . import uncaught

    exception = uncaught.find()
    if exception is not None:
        uncaught.send(exception)
