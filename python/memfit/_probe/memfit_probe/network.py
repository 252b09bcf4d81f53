"""Remembers hosts that could not be reached: a script may go on without what it lacks, and fail of that.
Shortens the pauses between attempts to reach them.
"""

import functools
import socket
import threading
import time

# The shortest pause, for a loop that never gives up.
MIN_PAUSE = 0.01

_unreached = []
# Threads in which a known host was not reached since their last pause.
_trying_again = threading.local()


def arm():
    """Watch the resolution of hosts' names."""
    original = socket.getaddrinfo

    @functools.wraps(original)
    def getaddrinfo(host, *args, **kwargs):
        try:
            return original(host, *args, **kwargs)
        except socket.gaierror:
            if isinstance(host, str):
                # The first pause is kept: a name server may have been busy.
                _trying_again.soon = host in _unreached
                _unreached.append(host)
            raise

    socket.getaddrinfo = getaddrinfo
    _shorten_pauses()


def _shorten_pauses():
    """Cut a pause that follows a failed attempt in the same thread. Libraries make six attempts for each of a
    dozen files, with pauses of up to 8 s.
    """
    original = time.sleep

    @functools.wraps(original)
    def sleep(seconds, /):
        if getattr(_trying_again, "soon", False):
            _trying_again.soon = False
            # A duration that `sleep` refuses stays one.
            if seconds > MIN_PAUSE:
                seconds = MIN_PAUSE
        return original(seconds)

    time.sleep = sleep


def forget():
    """Forget these hosts: what the script lacked was made up."""
    _unreached.clear()


def unreached():
    """Return the last host whose name was not resolved, or None."""
    return _unreached[-1] if _unreached else None
