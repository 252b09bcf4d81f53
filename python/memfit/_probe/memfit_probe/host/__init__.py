"""A run whose tensors stay on the host, so that a script and a changed one can be compared in numbers.

A virtual card computes nothing. Whether a change of a script trains as the script does is seen where both
are computed: a few steps on small batches, with the same random numbers for the same samples. The first run
writes the gradients of each optimizer step down, and what the script prints; a later one is compared with
them.
"""


def run_of(session):
    """What keeps or compares a process's numbers; None where its memory is wanted, as nearly always."""
    setup = session.setup.get("host")
    if not setup:
        return None
    from .run import HostRun

    return HostRun(session, setup)
