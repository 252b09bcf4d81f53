"""A run whose tensors stay on the host, so that a script and a changed one can be compared in numbers.

A virtual card computes nothing. Whether a change of a script trains as the script does is seen where both
are computed: a few steps on small batches, with the same random numbers for the same samples. The first run
writes the gradients of each optimizer step down, and what the script prints; a later one is compared with
them.
"""

from .run import HostRun

__all__ = ["HostRun"]
