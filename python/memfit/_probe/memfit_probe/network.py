"""Remembers hosts that could not be reached: a script may go on without what it lacks, and fail of that."""

import functools
import socket

_unreached = []


def arm():
    """Watch the resolution of hosts' names."""
    original = socket.getaddrinfo

    @functools.wraps(original)
    def getaddrinfo(host, *args, **kwargs):
        try:
            return original(host, *args, **kwargs)
        except socket.gaierror:
            if isinstance(host, str):
                _unreached.append(host)
            raise

    socket.getaddrinfo = getaddrinfo


def forget():
    """Forget these hosts: what the script lacked was made up."""
    _unreached.clear()


def unreached():
    """Return the last host whose name was not resolved, or None."""
    return _unreached[-1] if _unreached else None
