"""Keeps tensors from becoming sequences when their indexing is replaced.

Python makes a sequence of every class that gets a `__getitem__` in Python. `torch.Tensor` has it from C and
is none: `torch.tensor([a, b])` reads tensors of one number as numbers, but would take sequences apart.
"""

import ctypes
import functools
import sys

POINTER = ctypes.sizeof(ctypes.c_void_p)
# In the structure of a type: its size field and ten others come before its methods as a sequence, ...
SEQUENCE = object.__basicsize__ + 11 * POINTER
# ... of which the fourth gets an item.
ITEM = 3 * POINTER


@functools.cache
def avoidable():
    """Return `True` if `avoid` works in this interpreter."""
    if sys.implementation.name != "cpython":
        return False

    class Indexed:
        pass

    Indexed.__getitem__ = lambda self, index: index
    if not _is_sequence(Indexed()) or _item(Indexed) is None:
        return False
    avoid(Indexed)
    return not _is_sequence(Indexed()) and Indexed()[3] == 3


def avoid(cls):
    """Let a class, and those that extend it, be no sequences; indexing stays."""
    for each in (cls, *cls.__subclasses__()):
        # Those with an indexing of their own in Python are sequences without memfit, too.
        if each is cls or "__getitem__" not in vars(each):
            item = _item(each)
            if item is not None:
                item.value = None
            if each is not cls:
                avoid(each)


def avoiding(cls):
    """Return an `__init_subclass__` for a class, after which classes that extend it are not sequences."""

    def extended(new, **kwargs):
        super(cls, new).__init_subclass__(**kwargs)
        if "__getitem__" not in vars(new):
            avoid(new)

    return classmethod(extended)


def _item(cls):
    """Return the field of the function that gets an item, or `None` if it is not where it should be."""
    methods = ctypes.c_void_p.from_address(id(cls) + SEQUENCE).value
    # Python keeps the methods of such a class in the class itself.
    if methods is None or not id(cls) < methods < id(cls) + type.__basicsize__:
        return None
    return ctypes.c_void_p.from_address(methods + ITEM)


def _is_sequence(value):
    return bool(ctypes.pythonapi.PySequence_Check(ctypes.py_object(value)))
