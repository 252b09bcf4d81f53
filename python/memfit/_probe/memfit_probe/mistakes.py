"""Recognises errors in the script's own code or its library versions, which wrong values cannot cause."""

import sys
import types

# Libraries whose objects are data: what a made-up sample or an assumed value is not is decided by memfit.
DATA_LIBRARIES = ("PIL", "datasets", "numpy", "pandas")
# Parts of the paths of installed packages.
INSTALLED = ("/site-packages/", "/dist-packages/")
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
        subject = getattr(exception, "obj", None)
        return isinstance(subject, types.ModuleType) or _of_a_library(subject) or _by_a_module(exception)
    return type(exception) is TypeError and any(words in str(exception) for words in MISFIT)


def _of_a_library(subject):
    """Return `True` for an object of an installed library that no data or values decide, such as a loader's
    iterator: another release of the library has the attribute.
    """
    kind = subject if isinstance(subject, type) else type(subject)
    root = kind.__module__.partition(".")[0]
    path = getattr(sys.modules.get(root), "__file__", None) or ""
    if root in DATA_LIBRARIES or not any(part in path for part in INSTALLED):
        return False
    stands_in = "_memfit_length" in getattr(subject, "__dict__", ())
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    return not stands_in and not isinstance(subject, tensor)


def _by_a_module(exception):
    """Return `True` if a module's own `__getattr__` raised it."""
    last = exception.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    own = last.tb_frame.f_globals.get("__getattr__")
    return getattr(own, "__code__", None) is last.tb_frame.f_code
