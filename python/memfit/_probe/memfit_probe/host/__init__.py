"""Runs a script on the CPU, to compare it numerically with a changed version.

A virtual GPU computes nothing. To verify that a change keeps the training, both versions run a few steps on
small batches on the CPU, with the same random numbers for the same samples. The first run saves the gradients
of each optimizer step and the script's output; later runs are compared with them.
"""


def run_of(session):
    """Return the object that saves or compares a process's values; None for an ordinary run, which measures
    memory.
    """
    setup = session.setup.get("host")
    if not setup:
        return None
    from .run import HostRun

    return HostRun(session, setup)
