"""Keeps errors in the probe from ending the script."""

import functools


def guarded(function):
    """Catch exceptions; the first of each kind becomes a note in the report."""

    @functools.wraps(function)
    def call(self, *args, **kwargs):
        try:
            return function(self, *args, **kwargs)
        except Exception as error:
            session = getattr(self, "session", self)
            session.remark("probe-failed", error, where=f"in {function.__name__}")
            return None

    return call
