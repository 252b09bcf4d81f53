"""The command `memfit`: passes its arguments to the native library."""

from __future__ import annotations

import os
import signal
import sys

from memfit import _core


def main() -> int:
    """Run the command with the arguments of this process, and return its exit status."""
    # While native code runs, Python's own handler would only record Ctrl-C without acting on it.
    # It stays ignored if the parent process ignores it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    libraries = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_device")
    return _core.main(["memfit", *sys.argv[1:]], python=sys.executable or None, libraries=libraries)
