"""Names the script's own data set whose missing files ended the script."""

import inspect
import linecache
import sys
import types
from urllib.error import URLError

from .known_datasets import KNOWN
from .mistakes import INSTALLED

# Errors of missing files: torchvision raises a RuntimeError, or fails to read a missing file for lack of
# another package.
ABSENT = (FileNotFoundError, NotADirectoryError, ConnectionError, TimeoutError, URLError, RuntimeError)
# Libraries of graphs; the option cannot describe their samples.
GRAPH_LIBRARIES = ("torch_geometric", "dgl", "ogb")
# Methods of data sets that are replaced.
METHODS = ("__init__", "__getitem__", "__iter__")
# Words of the error of a sampler, and its argument, for a data set without samples.
NO_SAMPLES, SAMPLED = "num_samples=0", "data_source"

# The loader's module that calls a data set.
FETCH = "torch.utils.data._utils.fetch"

# Errors with which a data set's own code tells that its files are missing, words of them, and calls in an
# `assert` without words.
TOLD_BY = (RuntimeError, ValueError, AssertionError, Exception)
TOLD_ABSENT = (
    "download",
    "not found",
    "found 0",
    "found no",
    "no such",
    "not exist",
    "n't exist",
    "no file",
    "no image",
    "cannot find",
    "can't find",
    "could not find",
    "couldn't find",
    "not a valid directory",
    "not a directory",
    "is empty",
)
LOOKS_FOR = ("exists(", "isdir(", "isfile(", "is_dir(", "is_file(")


def is_absent(error):
    """Return `True` if an error of the script's own code tells that files are missing."""
    # Of a subclass, such as `torch.OutOfMemoryError`, the words are about something else.
    if type(error) not in TOLD_BY:
        return False
    said = str(error).lower()
    if any(words in said for words in TOLD_ABSENT):
        return True
    return isinstance(error, AssertionError) and any(call in raising_line(error) for call in LOOKS_FOR)


def is_network_error(error):
    """Return `True` for a network library's own subclass of `OSError`, as in `requests` and `aiohttp`."""
    return isinstance(error, OSError) and type(error).__module__ != "builtins"


def raising_line(error):
    """Return the line of source that raised an error."""
    traceback, place = error.__traceback__, None
    while traceback is not None:
        place, traceback = traceback, traceback.tb_next
    return linecache.getline(place.tb_frame.f_code.co_filename, place.tb_lineno) if place is not None else ""


def is_own(kind):
    """Return `True` if a class of data sets is the script's own, so that a description replaces it."""
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    if base is None or not issubclass(kind, base) or root(kind) in ("torch", "torchvision"):
        return False
    # Those that extend one of torchvision's with known samples are replaced by its name.
    return not any(
        root(each) in GRAPH_LIBRARIES or (root(each) == "torchvision" and each.__name__ in KNOWN)
        for each in kind.__mro__
    )


def is_plain(kind):
    """Return `True` for a class of the script's own that indexes samples and extends none of torch's."""
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    method = inspect.unwrap(vars(kind).get("__getitem__", kind))
    return (
        base is not None
        and not issubclass(kind, base)
        and isinstance(method, types.FunctionType)
        and not any(part in method.__code__.co_filename for part in INSTALLED)
    )


def root(kind):
    """Return the package that defines a class."""
    return kind.__module__.split(".")[0]


def lacking(exception):
    """Return the name of the script's own data set that an error of missing files left, or that found no
    samples, or None: a description of its samples replaces it.
    """
    empty = isinstance(exception, ValueError) and NO_SAMPLES in str(exception)
    if not empty and not isinstance(exception, OSError) and not is_absent(exception):
        return None
    found, traceback, fetched = None, exception.__traceback__, False
    while traceback is not None:
        frame = traceback.tb_frame
        code, traceback = frame.f_code, traceback.tb_next
        fetched |= frame.f_globals.get("__name__") == FETCH
        if code.co_name not in METHODS or not code.co_argcount:
            continue
        if empty:
            kind = type(frame.f_locals.get(SAMPLED))
            if is_own(kind):
                found = kind.__name__
            continue
        kind = type(frame.f_locals.get(code.co_varnames[0]))
        # The option wraps the constructor of the class itself, and other methods wherever they are defined.
        wrapped = code.co_name != "__init__" or "__init__" in vars(kind)
        if (wrapped and is_own(kind)) or (fetched and is_plain(kind)):
            found = kind.__name__
    return found
