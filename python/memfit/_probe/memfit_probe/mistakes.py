"""Errors of a script that no value can cause: they lie in its text, and in its libraries' releases."""

import types

# How Python says that a call does not fit the function's signature.
MISFIT = ("unexpected keyword argument", "positional argument", "required keyword-only argument")


def of_the_program(exception):
    """Whether it is a name that is not there, a module that is not installed, a call that does not fit."""
    if isinstance(exception, (ImportError, SyntaxError)):
        return True
    if isinstance(exception, NameError):
        # A variable may be without a value since a loop had no rounds.
        return not isinstance(exception, UnboundLocalError)
    if isinstance(exception, AttributeError):
        return isinstance(getattr(exception, "obj", None), types.ModuleType) or _by_a_module(exception)
    return type(exception) is TypeError and any(words in str(exception) for words in MISFIT)


def _by_a_module(exception):
    """Whether a module's own `__getattr__` raised it."""
    last = exception.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    own = last.tb_frame.f_globals.get("__getattr__")
    return getattr(own, "__code__", None) is last.tb_frame.f_code
