"""Keeps the user's checkpoints safe: in a dry run all weights are zeros, and must not be written over trained
ones.

Files that `torch.save` and safetensors would write go to a folder in the run directory instead, and are found
there when the script loads them again.
"""

import functools
import os

from . import channel, imports

FOLDER = "files"


class Checkpoints:
    """Writes of tensors to paths, led aside."""

    def __init__(self, session):
        self.session = session
        self.redirected = {}

    def arm(self):
        torch = self.session.torch
        save, load = torch.save, torch.load
        to, back = self._to, self._back

        @functools.wraps(save)
        def save_aside(obj, f, *args, **kwargs):
            return save(obj, to(f), *args, **kwargs)

        @functools.wraps(load)
        def load_back(f, *args, **kwargs):
            return load(back(f), *args, **kwargs)

        torch.save, torch.load = save_aside, load_back
        torch.serialization.save, torch.serialization.load = save_aside, load_back
        imports.after("safetensors.torch", self._arm_safetensors)

    def _arm_safetensors(self, module):
        to, back = self._to, self._back
        for name in ("save_file", "save_model"):
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, _with_path(original, 1, "filename", to))
        for name, position in (("load_file", 0), ("load_model", 1)):
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, _with_path(original, position, "filename", back))

    def _to(self, target):
        """Where a write to `target` goes. Files that are open already are the script's own affair."""
        path = _path(target)
        if path is None:
            return target
        # Devices and pipes are not checkpoints.
        if os.path.exists(path) and not os.path.isfile(path):
            return target
        aside = self.redirected.get(path)
        if aside is None:
            folder = os.path.join(channel.run_dir(), FOLDER, str(os.getpid()))
            aside = os.path.join(folder, f"{len(self.redirected)}-{os.path.basename(path)}")
            os.makedirs(folder, exist_ok=True)
            self.redirected[path] = aside
            self.session.remark("checkpoints")
        return aside

    def _back(self, source):
        path = _path(source)
        aside = self.redirected.get(path) if path is not None else None
        return aside if aside is not None and os.path.exists(aside) else source


def _path(target):
    if isinstance(target, (str, os.PathLike)):
        return os.path.realpath(os.fspath(target))
    return None


def _with_path(original, position, name, change):
    @functools.wraps(original)
    def call(*args, **kwargs):
        if name in kwargs:
            kwargs[name] = change(kwargs[name])
        elif len(args) > position:
            args = (*args[:position], change(args[position]), *args[position + 1 :])
        return original(*args, **kwargs)

    return call
