"""Finds unknown numbers that come back to the script in files: written as texts, and read again.

A text that only goes to a file is taken for shown (`shown_texts`). If the script then opens a file that has
changed since it read the first unknown number, or lists a folder with files that may be named after one,
something may depend on the number. It may not: a further run tells.
"""

import contextlib
import os
import sys

from . import channel, shown_texts
from .oom import frames_here

# The file in the run's folder that tells other processes of the run that unknown numbers were read.
MARK = "unknown-numbers"
# Ends of the names of files that hold no results of a training.
CODE = (".py", ".pyc", ".so")
# Files of the system, and parts of the paths of what compilers keep.
SYSTEM = ("/proc/", "/sys/", "/dev/")
COMPILED = ("torchinductor", f"{os.sep}.triton{os.sep}", f"{os.sep}triton{os.sep}")
# End of the path of the module that loads checkpoints, which are looked through there (`saved`).
LOADS = os.path.join("torch", "serialization.py")
# Seconds by which the clock of a file system may be behind.
CLOCK = 0.02
LISTINGS = ("os.listdir", "os.scandir")


class ComeBack:
    """Watches the files that the script reads from its first unknown number on."""

    def __init__(self, comes_back):
        """`comes_back` is called where a file is read that may hold unknown numbers."""
        self.deciding, self.comes_back = [], comes_back
        self.begun, self.watches = None, False
        self.uses = set()
        self.folder = channel.run_dir()
        self.mark = os.path.join(self.folder, MARK)

    def arm(self, decides):
        """Watch from the beginning if a process that started this one has read unknown numbers."""
        if os.path.exists(self.mark):
            self.read(decides)

    def read(self, decides):
        """Record that an unknown number was read; what depends on a file from now on calls `decides`."""
        if decides in self.deciding:
            return
        self.deciding = [*self.deciding, decides]
        if self.begun is None:
            with open(self.mark, "a", encoding="utf-8"):
                pass
            self.begun = os.stat(self.mark).st_mtime - CLOCK
        if not self.watches:
            self.watches = True
            sys.addaudithook(self._happens)

    def used(self, use):
        """Record a use of a text or a pickle of an unknown number."""
        self.uses.add(use)

    def loaded(self):
        """Record that the script loaded a checkpoint, which may hold unknown numbers."""
        if shown_texts.SAVED in self.uses:
            self._decide()

    def _happens(self, event, values):
        # A script must not fail because a file is looked at.
        with contextlib.suppress(Exception):
            if event == "open":
                comes_back = self._is_read(values[0], values[2])
            else:
                # The folder does not change where a checkpoint goes to the run's own.
                comes_back = event in LISTINGS and shown_texts.NAMED in self.uses and not _imports()
            if comes_back:
                self._decide()

    def _decide(self):
        for decides in self.deciding:
            decides()
        self.comes_back()

    def _is_read(self, path, flags):
        """Return `True` if a file is opened to be read which may hold unknown numbers."""
        if not isinstance(flags, int) or flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_TRUNC:
            return False
        if not self._is_new(path):
            return False
        frames = frames_here()
        return not (frames and frames[0].f_code.co_filename.endswith(LOADS))

    def _is_new(self, path):
        """Return `True` if a file or a folder has changed since the first unknown number was read."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        try:
            name = os.path.abspath(os.fsdecode(path))
            changed = os.stat(name).st_mtime
        except (OSError, ValueError):
            return False
        others = name.endswith(CODE) or name.startswith((*SYSTEM, self.folder))
        return changed >= self.begun and not others and not any(part in name for part in COMPILED)


def _imports():
    """Return `True` if Python looks for a module."""
    frames = frames_here()
    return bool(frames) and frames[0].f_code.co_filename.startswith("<frozen importlib")
