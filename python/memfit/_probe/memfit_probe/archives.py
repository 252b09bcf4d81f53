"""Archives of weights that could not be downloaded: opened, they are empty. What loads a file that they would
have held keeps its own values.
"""

import io
import os
import tarfile
import zipfile

from .wrapping import alike

# Endings of the names of archives.
ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# Words in the URL or the path of an archive that holds a model, and no data.
OF_MODELS = ("model", "weight", "checkpoint", "ckpt", "pretrain")
# Contents of archives without members.
NO_MEMBERS_ZIP = b"PK\x05\x06" + bytes(18)
NO_MEMBERS_TAR = bytes(2 * tarfile.BLOCKSIZE)
# Absolute paths of files that a download left missing.
GONE = set()


def holds_model(url, target):
    """Return `True` if a download is of an archive, and its URL or its name says that it holds a model."""
    if not isinstance(target, (str, os.PathLike)):
        return False
    name = os.fspath(target)
    if not isinstance(name, str) or not name.lower().endswith(ARCHIVES):
        return False
    said = f"{url if isinstance(url, str) else ''} {os.path.basename(name)}".lower()
    return any(word in said for word in OF_MODELS)


def arm():
    """Let archives that are gone be opened and removed."""
    opened, from_tar = zipfile.ZipFile.__init__, tarfile.open

    @alike(opened)
    def init(self, file, *args, **kwargs):
        opened(self, io.BytesIO(NO_MEMBERS_ZIP) if is_gone(file) else file, *args, **kwargs)

    @alike(from_tar)
    def open_tar(name=None, mode="r", fileobj=None, *args, **kwargs):
        if fileobj is None and is_gone(name):
            return from_tar(None, "r:", io.BytesIO(NO_MEMBERS_TAR))
        return from_tar(name, mode, fileobj, *args, **kwargs)

    zipfile.ZipFile.__init__ = init
    tarfile.open = open_tar
    for name in ("remove", "unlink"):
        setattr(os, name, forgetting(getattr(os, name)))


def forgetting(original):
    """Make a function that removes a file take one that is gone."""

    @alike(original)
    def remove(path, *args, **kwargs):
        if not is_gone(path):
            original(path, *args, **kwargs)

    return remove


def is_gone(path):
    """Return `True` for the path of a file that a download left missing and nothing has written since."""
    if not GONE or not isinstance(path, (str, os.PathLike)):
        return False
    path = os.path.abspath(os.fspath(path))
    return path in GONE and not os.path.exists(path)
