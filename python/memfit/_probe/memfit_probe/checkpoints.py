"""Keeps checkpoints off the user's disk: in a dry run all weights are zeros.

The watcher library leads files aside, for all of a process and the programs that it starts
(`memfit-overlay`); it is told here which file is a checkpoint.
"""

import contextlib
import ctypes
import functools
import io
import os

from . import imports


def find():
    """The library's functions, or None where it is not loaded."""
    try:
        library = ctypes.CDLL(None)
        return library if library.memfit_overlay_save else None
    except (AttributeError, OSError):
        return None


class Checkpoints:
    """The writers of checkpoints, each told of."""

    def __init__(self, torch):
        self.torch = torch
        self.library = find()

    def arm(self):
        if self.library is None:
            return
        torch = self.torch
        torch.save = torch.serialization.save = self._writer(torch.save, 1, "f")
        imports.after("torch.jit", self._arm_scripts)
        imports.after("safetensors", self._arm_safetensors)

    def become(self):
        """This forked child is a run of its own from here on, with files of its own."""
        if self.library is not None:
            self.library.memfit_overlay_become()

    def _arm_scripts(self, module):
        module.save = self._writer(module.save, 1, "f")

    def _arm_safetensors(self, module):
        """All of its faces (`safetensors.torch`, `.numpy`) write through these two."""
        serialize, serialize_file = module.serialize, module.serialize_file

        @functools.wraps(serialize)
        def in_memory(*args, **kwargs):
            self.library.memfit_overlay_expect()
            return serialize(*args, **kwargs)

        @functools.wraps(serialize_file)
        def to_file(tensor_dict, filename, *args, **kwargs):
            with self.writing():
                # The library renames a temporary file by a system call of its own, which nothing leads aside:
                # it is handed the place in the run directory.
                descriptor = os.open(filename, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
                try:
                    place = os.readlink(f"/proc/self/fd/{descriptor}")
                finally:
                    os.close(descriptor)
                return serialize_file(tensor_dict, place, *args, **kwargs)

        module.serialize, module.serialize_file = in_memory, to_file

    @contextlib.contextmanager
    def writing(self):
        """What this thread opens for writing within this is a checkpoint."""
        self.library.memfit_overlay_save(1)
        try:
            yield
        finally:
            self.library.memfit_overlay_save(0)

    def _writer(self, original, position, name):
        """A function that writes a checkpoint to the file that this argument is."""

        @functools.wraps(original)
        def save(*args, **kwargs):
            target = args[position] if len(args) > position else kwargs.get(name)
            if isinstance(target, (str, bytes, os.PathLike)):
                with self.writing():
                    return original(*args, **kwargs)
            descriptor = descriptor_of(target)
            if descriptor is None:
                self.library.memfit_overlay_expect()
            else:
                # What was written before it belongs to the file as well.
                with contextlib.suppress(Exception):
                    target.flush()
                self.library.memfit_overlay_divert(descriptor)
            return original(*args, **kwargs)

        return save


def descriptor_of(file):
    """The descriptor of an open file, or None for what is in memory."""
    try:
        return file.fileno()
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        return None
