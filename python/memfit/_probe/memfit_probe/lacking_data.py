"""Names the script's own data set whose missing files ended the script."""

import linecache
import sys

from .known_datasets import KNOWN

# Libraries of graphs; the option cannot describe their samples.
GRAPH_LIBRARIES = ("torch_geometric", "dgl", "ogb")
# Methods of data sets that are replaced.
METHODS = ("__init__", "__getitem__", "__iter__")
# Words of the error of a sampler, and its argument, for a data set without samples.
NO_SAMPLES, SAMPLED = "num_samples=0", "data_source"

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
    found, traceback = None, exception.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        code, traceback = frame.f_code, traceback.tb_next
        if code.co_name not in METHODS or not code.co_argcount:
            continue
        if empty:
            kind = type(frame.f_locals.get(SAMPLED))
            if is_own(kind):
                found = kind.__name__
            continue
        kind = type(frame.f_locals.get(code.co_varnames[0]))
        # The option wraps the constructor of the class itself, and other methods wherever they are defined.
        if (code.co_name != "__init__" or "__init__" in vars(kind)) and is_own(kind):
            found = kind.__name__
    return found
