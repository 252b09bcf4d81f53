"""Recognises errors in the script's own code or its library versions, which wrong values cannot cause."""

import types

# Python's messages for a call that does not match the function's signature.
MISFIT = (
    "unexpected keyword argument",
    "positional argument",
    "required keyword-only argument",
    # Of functions that are written in C.
    "takes exactly one argument",
    "takes no arguments",
    "takes no keyword arguments",
)


def of_the_program(exception):
    """Return `True` for an undefined name, a missing module, or a call that does not match the signature."""
    if isinstance(exception, (ImportError, SyntaxError)):
        return True
    if isinstance(exception, NameError):
        # A variable may be unassigned because a loop had no iterations.
        return not isinstance(exception, UnboundLocalError)
    if isinstance(exception, AttributeError):
        return isinstance(getattr(exception, "obj", None), types.ModuleType) or _by_a_module(exception)
    return type(exception) is TypeError and any(words in str(exception) for words in MISFIT)


def _by_a_module(exception):
    """Return `True` if a module's own `__getattr__` raised it."""
    last = exception.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    own = last.tb_frame.f_globals.get("__getattr__")
    return getattr(own, "__code__", None) is last.tb_frame.f_code
