"""Downloads of weights by a script's own code. With `--synthetic-weights`, a file that cannot be fetched
stays missing, and what loads it keeps its own values.
"""

import functools
import os

from . import imports
from .wrapping import alike

# Modules, their functions that write what a URL has into a file, and their parameter of the file's path.
CALLS = (
    ("urllib.request", "urlretrieve", "filename"),
    ("torch.hub", "download_url_to_file", "dst"),
    ("gdown", "download", "output"),
    ("wget", "download", "out"),
)
# Endings of the names of files that hold weights.
WEIGHTS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".tar", ".t7")
# Words of errors about a host that is not reached.
UNREACHED = ("Name or service not known", "name resolution", "Failed to resolve", "unreachable")


def arm(note):
    """Let the calls go on without a file of weights that cannot be fetched. `note(what)` tells it."""
    for module, name, parameter in CALLS:
        imports.after(module, functools.partial(replace, note, name, parameter))


def replace(note, name, parameter, module):
    original = getattr(module, name, None)
    if not callable(original) or not hasattr(original, "__code__"):
        return

    @alike(original)
    def download(url, *args, **kwargs):
        target = kwargs.get(parameter, args[0] if args else None)
        try:
            return original(url, *args, **kwargs)
        except Exception as error:
            if not holds_weights(target) or not is_unreached(error):
                raise
            note(f"`{url}` was not downloaded: what loads `{target}` keeps its own values")
            return (target, None) if name == "urlretrieve" else target

    setattr(module, name, download)
    for holder, namespace in imports.loaded():
        if namespace.get(name) is original:
            setattr(holder, name, download)


def holds_weights(target):
    """Return `True` for the path of a file whose name says that it holds weights."""
    return isinstance(target, (str, os.PathLike)) and os.fspath(target).lower().endswith(WEIGHTS)


def is_unreached(error):
    return any(words in str(error) for words in UNREACHED)


def lacking(exception):
    """Return the file of weights whose download failed with an exception, or None."""
    found, traceback = None, exception.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        for module, name, parameter in CALLS:
            if frame.f_code.co_name == name and frame.f_globals.get("__name__", "").startswith(module):
                target = frame.f_locals.get(parameter)
                found = os.fspath(target) if holds_weights(target) else found
    return found if found is not None and is_unreached(exception) else None
