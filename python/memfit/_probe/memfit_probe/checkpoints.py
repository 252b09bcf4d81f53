"""Keeps checkpoints off the user's disk, because all weights are zeros in a dry run.

The watcher library redirects files for this process and its child programs (`memfit-overlay`); this module
tells it which files are checkpoints.
"""

import contextlib
import ctypes
import functools
import io
import os
import threading

from . import device, imports

# The device's code for floating-point numbers, on which nothing depends.
KEPT = 3
_thread = threading.local()


def find():
    """Return the library's functions, or None if it is not loaded."""
    try:
        library = ctypes.CDLL(None)
        return library if library.memfit_overlay_save else None
    except (AttributeError, OSError):
        return None


class Checkpoints:
    """Wraps the functions that write checkpoints."""

    def __init__(self, torch):
        self.torch = torch
        self.library = find()
        # For files that are not checkpoints.
        self.save = torch.save

    def arm(self):
        if self.library is None:
            return
        torch = self.torch
        torch.save = torch.serialization.save = self._writer(torch.save, 1, "f")
        imports.after("torch.jit", self._arm_scripts)
        imports.after("safetensors", self._arm_safetensors)

    def become(self):
        """Give this forked child its own redirected files."""
        if self.library is not None:
            self.library.memfit_overlay_become()

    def _arm_scripts(self, module):
        module.save = self._writer(module.save, 1, "f")

    def _arm_safetensors(self, module):
        """Wrap these two functions: all of its APIs (`safetensors.torch`, `.numpy`) use them."""
        serialize, serialize_file = module.serialize, module.serialize_file

        @functools.wraps(serialize)
        def in_memory(*args, **kwargs):
            self.library.memfit_overlay_expect()
            return serialize(*args, **kwargs)

        @functools.wraps(serialize_file)
        def to_file(tensor_dict, filename, *args, **kwargs):
            with self.writing():
                # The library renames a temporary file with a direct system call, which cannot be redirected,
                # so it gets the path in the run directory.
                descriptor = os.open(filename, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
                try:
                    place = os.readlink(f"/proc/self/fd/{descriptor}")
                finally:
                    os.close(descriptor)
                return serialize_file(tensor_dict, place, *args, **kwargs)

        module.serialize, module.serialize_file = in_memory, to_file

    @contextlib.contextmanager
    def writing(self):
        """Treat files that this thread opens for writing as checkpoints."""
        self.library.memfit_overlay_save(1)
        try:
            yield
        finally:
            self.library.memfit_overlay_save(0)

    def _writer(self, original, position, name):
        """Wrap a function that writes a checkpoint to the file in this argument."""

        @functools.wraps(original)
        def save(*args, **kwargs):
            target = args[position] if len(args) > position else kwargs.get(name)
            if isinstance(target, (str, bytes, os.PathLike)):
                with self.writing(), copying():
                    return original(*args, **kwargs)
            descriptor = descriptor_of(target)
            if descriptor is None:
                self.library.memfit_overlay_expect()
            else:
                # Data written before belongs to the file as well.
                with contextlib.suppress(Exception):
                    target.flush()
                self.library.memfit_overlay_divert(descriptor)
            with copying():
                return original(*args, **kwargs)

        return save


@contextlib.contextmanager
def copying():
    """Take what this thread reads from the GPU as numbers that are kept, and not as integers, which sizes may
    depend on.
    """
    known = device.find()
    _thread.is_copying = True
    if known is not None:
        known.reading(KEPT)
    try:
        yield
    finally:
        _thread.is_copying = False
        if known is not None:
            known.reading(0)


def is_copying():
    """Return `True` if this thread copies tensors to a checkpoint, which changes none of them."""
    return getattr(_thread, "is_copying", False)


def descriptor_of(file):
    """Return the descriptor of an open file, or None for in-memory files."""
    try:
        return file.fileno()
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        return None
