"""Attributes that a data set would have set from its files: a data set of described samples has none of them.

A script may pass one on, to use it later or never; where it uses it, it ends, and is told what it lacks.
"""

import sys
import types

# The instruction that sets an attribute.
SETS = "STORE_ATTR"
# Operators and conversions that use a value.
USES = (
    *(
        f"__{side}{name}__"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
        for side in ("", "r")
    ),
    *(f"__{name}__" for name in ("neg", "pos", "abs", "lt", "le", "gt", "ge")),
    *(f"__{name}__" for name in ("len", "iter", "next", "getitem", "setitem", "contains", "call")),
    *(f"__{name}__" for name in ("bool", "int", "float", "index", "array", "enter", "exit")),
)


class Unset:
    """Stands for an attribute that was not set."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._memfit_refuse()

    def __repr__(self):
        return f"<memfit: `{self.name}` of `{self.owner}` was not set>"

    def _memfit_refuse(self, *args, **kwargs):
        raise RuntimeError(
            f"memfit: `{self.name}` of `{self.owner}` comes from its files, which are missing. Put a few real "
            "samples where it looks for them, without `--synthetic-data`."
        )


for _name in USES:
    setattr(Unset, _name, Unset._memfit_refuse)


def lend(cls, is_own, told):
    """Let data sets of a class that were replaced have the attributes that its code sets.

    `told(dataset, name)` is called for each that a script reads. A data set that is made from this one asks
    for them as well, and is replaced itself if it does not get them: `is_own(kind)` recognises its class.
    """
    names, original = assigned(cls), getattr(cls, "__getattr__", None)

    def __getattr__(self, name):  # noqa: N807 - it takes the method's place
        if (
            name in names
            and "_memfit_length" in vars(self)
            and not _makes_another(self, sys._getframe(1), is_own)
        ):
            told(self, name)
            value = Unset(type(self).__name__, name)
            object.__setattr__(self, name, value)
            return value
        if original is not None:
            return original(self, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)

    cls.__getattr__ = __getattr__


def _makes_another(dataset, frame, is_own):
    """Return `True` if a frame is of the constructor of another data set of the script's."""
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return False
    made = frame.f_locals.get(code.co_varnames[0])
    return made is not dataset and is_own(type(made))


def assigned(cls):
    """Return the names of the attributes that the methods of a class set."""
    import dis

    names = set()
    for each in cls.__mro__:
        if each.__module__.split(".")[0] in ("torch", "torchvision", "builtins", "typing"):
            continue
        for method in vars(each).values():
            while hasattr(method, "__wrapped__"):
                method = method.__wrapped__
            if isinstance(method, types.FunctionType):
                instructions = dis.get_instructions(method.__code__)
                names.update(step.argval for step in instructions if step.opname == SETS)
    return names
