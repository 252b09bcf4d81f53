"""Names the installed package that lacks what a script asks of it: another release may have it."""

import linecache
import sys
import types

from .mistakes import INSTALLED

# Python's words about an argument that a function does not take, after the function's name.
NO_ARGUMENT = "() got an unexpected keyword argument '"
# Python's words where a class passes arguments on to a base class without a constructor.
NO_CONSTRUCTOR = "object.__init__() takes exactly one argument"
# Frames that may hold the function that was called.
FRAMES = 3


def lacking(exception):
    """Return what an exception says that an installed package does not have, or None."""
    if isinstance(exception, AttributeError):
        subject, name = getattr(exception, "obj", None), getattr(exception, "name", None)
        if subject is None or not name:
            return None
        if _is_of_generation(subject, name):
            return _told("transformers", name, argument=False)
        if not _is_of_its_class(subject, name, exception):
            return None
        return _told(root_of(subject), name, argument=False)
    if type(exception) is TypeError and str(exception).startswith(NO_CONSTRUCTOR):
        return _without_constructor(exception)
    function, found, rest = str(exception).partition(NO_ARGUMENT)
    if type(exception) is not TypeError or not found:
        return None
    return _told(_root_of_function(function, exception), rest.partition("'")[0], argument=True)


def _is_of_its_class(subject, name, exception):
    """Return `True` if no data decide what a subject has: a module, a class, or an object whose method was
    to be called. A configuration has the names that it was given, and a wrapped model those of another.
    """
    if isinstance(subject, (types.ModuleType, type)):
        return True
    if type(exception) is not AttributeError or isinstance(
        subject, getattr(sys.modules.get("torch.nn"), "Module", ())
    ):
        return False
    return any(f".{name}(" in line for line in lines_of(exception))


def _is_of_generation(subject, name):
    """Return `True` for a parameter of generation that a model's configuration had in earlier releases."""
    configurations = vars(sys.modules.get("transformers.configuration_utils", types)).values()
    generation = sys.modules.get("transformers.generation.configuration_utils")
    kind = getattr(generation, "GenerationConfig", None)
    if kind is None or not any(isinstance(subject, each) for each in configurations if _is_base(each)):
        return False
    return name in vars(kind())


def _is_base(kind):
    return isinstance(kind, type) and kind.__name__ in ("PretrainedConfig", "PreTrainedConfig")


def lines_of(exception):
    """Yield the lines of source through which an exception came. A wrapper passes attributes on."""
    traceback = exception.__traceback__
    while traceback is not None:
        yield linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next


def innermost(exception):
    """Return the innermost part of an exception's traceback, or None."""
    last = exception.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last


def root_of(subject):
    """Return the name of the package that a module, a class or an object's class is from."""
    if isinstance(subject, types.ModuleType):
        name = subject.__name__
    else:
        kind = subject if isinstance(subject, (type, types.FunctionType)) else type(subject)
        name = getattr(kind, "__module__", None) or ""
    return name.partition(".")[0]


def _told(root, name, argument):
    module = sys.modules.get(root)
    path = getattr(module, "__file__", None) or ""
    if not any(part in path for part in INSTALLED):
        return None
    release = getattr(module, "__version__", None)
    return {
        "package": root,
        "release": release if isinstance(release, str) else None,
        "name": name,
        "argument": argument,
    }


def _without_constructor(exception):
    """Return the installed class that a class extends, and that no longer has a constructor."""
    last = innermost(exception)
    if last is None:
        return None
    code, values = last.tb_frame.f_code, last.tb_frame.f_locals
    kinds = type(values.get(code.co_varnames[0])).__mro__ if code.co_argcount else ()
    found = (_told(root_of(kind), f"{kind.__name__}.__init__", argument=False) for kind in kinds[1:])
    return next((each for each in found if each is not None), None)


def _root_of_function(function, exception):
    """Return the package of the function or class of that name that the innermost frames can call."""
    first = function.partition(".")[0]
    frames, traceback = [], exception.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in list(reversed(frames))[:FRAMES]:
        for value in (*frame.f_locals.values(), *frame.f_globals.values()):
            if isinstance(value, types.ModuleType):
                value = vars(value).get(first)
            for each in (value, type(value)):
                names = (getattr(each, "__qualname__", None), getattr(each, "__name__", None))
                if function in names or (isinstance(each, type) and first == names[0]):
                    return root_of(each)
    return ""
