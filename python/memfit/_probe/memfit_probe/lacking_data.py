"""Names the script's own data set whose missing files ended the script."""

import sys

# Libraries of graphs; the option cannot describe their samples.
GRAPH_LIBRARIES = ("torch_geometric", "dgl", "ogb")
# Libraries whose data sets are not replaced by a description, or by their own names.
OTHERS = (*GRAPH_LIBRARIES, "torchvision")
# Words of the error of a sampler, and its argument, for a data set without samples.
NO_SAMPLES, SAMPLED = "num_samples=0", "data_source"


def is_own(kind):
    """Return `True` if a class of data sets is the script's own, so that a description replaces it."""
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    if base is None or not issubclass(kind, base) or kind.__module__.split(".")[0] == "torch":
        return False
    return not {each.__module__.split(".")[0] for each in kind.__mro__}.intersection(OTHERS)


def lacking(exception):
    """Return the name of the script's own data set that an error of missing files left, or that found no
    samples, or None: a description of its samples replaces it.
    """
    empty = isinstance(exception, ValueError) and NO_SAMPLES in str(exception)
    if not empty and not isinstance(exception, OSError):
        return None
    found, traceback = None, exception.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        code, traceback = frame.f_code, traceback.tb_next
        if code.co_name not in ("__init__", "__getitem__") or not code.co_argcount:
            continue
        if empty:
            kind = type(frame.f_locals.get(SAMPLED))
            if is_own(kind):
                found = kind.__name__
            continue
        kind = type(frame.f_locals.get(code.co_varnames[0]))
        # The option wraps the constructor of the class itself, and `__getitem__` wherever it is defined.
        if (code.co_name == "__getitem__" or "__init__" in vars(kind)) and is_own(kind):
            found = kind.__name__
    return found
