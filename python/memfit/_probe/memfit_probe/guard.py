"""Keeps the probe's own mistakes away from the script."""

import functools


def guarded(function):
    """Keeps the probe's own mistakes away from the script: the first of each kind becomes a note."""

    @functools.wraps(function)
    def call(self, *args, **kwargs):
        try:
            return function(self, *args, **kwargs)
        except Exception as error:
            session = getattr(self, "session", self)
            session.remark("probe-failed", error, where=f"in {function.__name__}")
            return None

    return call
