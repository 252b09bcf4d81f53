"""Makes a function look like the one whose place it takes, and be treated like it."""

import functools
import importlib
import inspect


def alike(original):
    """Decorate a function that takes the place of `original`, with its name, documentation and signature.

    `inspect.signature` follows `__wrapped__`; `inspect.getfullargspec`, which libraries call as well to find
    out what a class takes, does not.
    """

    def decorate(function):
        functools.update_wrapper(function, original)
        try:
            function.__signature__ = inspect.signature(original)
        except (TypeError, ValueError):
            # A function of C's may have none.
            pass
        return function

    return decorate


def list_constructors():
    """Have PyTorch list the functions that `with torch.device(…)` applies to, before one is replaced.

    The list is built at its first use, and what a replacement calls is looked up in it by identity.
    """
    importlib.import_module("torch.utils._device")._device_constructors()
