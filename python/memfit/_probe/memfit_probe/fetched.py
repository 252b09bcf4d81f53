"""Downloads of weights by a script's own code. With `--synthetic-weights`, a file that cannot be fetched
stays missing, and what loads it keeps its own values.
"""

import functools
import io
import os
from urllib.parse import urlsplit

from . import archives, hub_files, imports
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
# Words of Hugging Face's hub about a file that is not in its cache, and that it cannot fetch.
NOT_CACHED = ("locate the file on the Hub", "offline mode is enabled", "outgoing traffic has been disabled")


def arm(note):
    """Let the calls go on without a file of weights that cannot be fetched. `note(what)` tells it."""
    for module, name, parameter in CALLS:
        imports.after(module, functools.partial(replace, note, name, parameter))
    imports.after("requests.sessions", functools.partial(replace_requests, note))
    archives.arm()
    hub_files.arm(note, holds_weights)


class NoContent:
    """The answer of `requests` in place of a file of weights: an empty one."""

    status_code, ok, reason, encoding = 200, True, "OK", None
    content, text = b"", ""

    def __init__(self, url):
        self.url, self.headers, self.raw = url, {"content-length": "0"}, io.BytesIO()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def iter_content(self, chunk_size=1, decode_unicode=False):
        return iter(())

    def raise_for_status(self):
        return None

    def close(self):
        return None


def replace_requests(note, module):
    """Let `requests` answer with an empty file of weights where the host is not reached."""
    original = module.Session.request

    @alike(original)
    def request(self, method, url, *args, **kwargs):
        try:
            return original(self, method, url, *args, **kwargs)
        except OSError as error:
            if not isinstance(url, str) or not holds_weights(urlsplit(url).path) or not is_unreached(error):
                raise
            note(f"`{url}` was not downloaded: what loads the empty file keeps its own values")
            return NoContent(url)

    module.Session.request = request


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
            if not is_of_weights(url, target) or not is_unreached(error):
                raise
            archives.GONE.add(os.path.abspath(os.fspath(target)))
            note(f"`{url}` was not downloaded: what loads `{target}` keeps its own values")
            return (target, None) if name == "urlretrieve" else target

    imports.replace(module, name, download)


def holds_weights(target):
    """Return `True` for the path of a file whose name says that it holds weights."""
    return isinstance(target, (str, os.PathLike)) and os.fspath(target).lower().endswith(WEIGHTS)


def is_of_weights(url, target):
    """Return `True` if a download is of a file of weights, or of an archive whose name or URL says that it
    holds a model.
    """
    return holds_weights(target) or archives.holds_model(url, target)


def is_unreached(error):
    return any(words in str(error) for words in (*UNREACHED, *NOT_CACHED))


def lacking(exception):
    """Return the file of weights whose download failed with an exception, or None."""
    found, traceback = None, exception.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        for module, name, parameter in (*CALLS, (hub_files.MODULE, hub_files.NAME, hub_files.FILE)):
            if frame.f_code.co_name == name and frame.f_globals.get("__name__", "").startswith(module):
                target = frame.f_locals.get(parameter)
                found = os.fspath(target) if is_of_weights(frame.f_locals.get("url"), target) else found
    return found if found is not None and is_unreached(exception) else None
