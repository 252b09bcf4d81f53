"""Remembers the folder in which the script last looked for files, and which is not there.

`os.walk` and `glob` find nothing then and raise nothing: a data set without samples fails later, elsewhere.
"""

import glob
import os
import pathlib
import sys

from .wrapping import alike

# Characters that begin a pattern.
MAGIC = "*?["
_absent = None


def arm():
    """Watch the functions that list folders."""
    os.walk = _watched(os.walk, os.fspath)
    glob.glob = _watched(glob.glob, fixed_part)
    glob.iglob = _watched(glob.iglob, fixed_part)
    for name in ("glob", "rglob"):
        setattr(pathlib.Path, name, _watched(getattr(pathlib.Path, name), os.fspath))


def last_absent():
    """Return the folder, if it is still not there, or None."""
    return _absent if _absent is not None and not os.path.isdir(_absent) else None


def fixed_part(pattern):
    """Return the folder of a pattern, as far as it has no wildcards."""
    parts = os.fspath(pattern).split(os.sep)
    first = next((place for place, part in enumerate(parts) if any(each in part for each in MAGIC)), -1)
    return os.sep.join(parts[:first])


def _watched(original, folder_of):
    from .oom import is_library

    @alike(original)
    def listing(top, *args, **kwargs):
        global _absent
        try:
            if not is_library(sys._getframe(1).f_code.co_filename):
                folder = folder_of(top)
                if isinstance(folder, str) and folder and not os.path.isdir(folder):
                    _absent = folder
        except Exception:
            # The original says what is wrong with its argument.
            pass
        return original(top, *args, **kwargs)

    return listing
