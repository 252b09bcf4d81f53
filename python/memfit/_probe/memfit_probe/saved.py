"""Data that nobody computed, saved and loaded again: what is loaded are zeros, as the copies were.

Saving copies tensors without looking at them, so it is not taken for a use (`checkpoints`). Loading gives
the script tensors that it may look at. Weights and the state of optimizers are not looked for: scripts load
these back into a model.
"""

import functools

from . import imports

# Depth of the dictionaries and lists in which tensors are looked for.
DEPTH = 7
# Keys of an optimizer's state.
OPTIMIZER = ("state", "param_groups")
# The module of another library that saves tensors, with its functions.
LIBRARY, SAVES, LOADS = "safetensors.torch", ("save", "save_file"), ("load", "load_file")


def arm(reads):
    """Watch PyTorch's functions that save and load; pickling a tensor calls them as well."""
    saved = Saved(reads)
    torch = reads.session.torch
    torch.save = torch.serialization.save = saved.saving(torch.save)
    torch.load = torch.serialization.load = saved.loading(torch.load)
    imports.after(LIBRARY, saved.watch)
    # An unknown number in a checkpoint is pickled as a call of its type (`unknown_floats`).
    allow = getattr(torch.serialization, "add_safe_globals", None)
    if allow is not None:
        allow([float, int])


class Saved:
    """Remembers that something was saved which nobody computed, and records what is loaded after that."""

    def __init__(self, reads):
        self.reads = reads
        self.torch = reads.session.torch
        self.is_unknown = False

    def watch(self, module):
        """Watch the functions of another library's module."""
        for names, watched in ((SAVES, self.saving), (LOADS, self.loading)):
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, watched(getattr(module, name)))

    def saving(self, original):
        @functools.wraps(original)
        def save(*args, **kwargs):
            given = (*args, *kwargs.values())
            self.is_unknown = self.is_unknown or any(
                map(self.reads.copied.is_unknown_data, self._tensors(given))
            )
            return original(*args, **kwargs)

        return save

    def loading(self, original):
        @functools.wraps(original)
        def load(*args, **kwargs):
            result = original(*args, **kwargs)
            self.reads.files.loaded()
            if self.is_unknown and not self.reads.session.is_compiling():
                for tensor in self._tensors(result):
                    self.reads.copied.loaded(tensor)
            return result

        return load

    def _tensors(self, value, depth=DEPTH):
        """Yield the tensors in a value, and those of its storages, but not the state of optimizers."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, torch.TypedStorage):
            empty = torch.tensor([], dtype=value.dtype, device=value.device)
            yield empty.set_(value.untyped(), 0, (value.size(),), (1,))
        elif isinstance(value, torch.UntypedStorage):
            empty = torch.tensor([], dtype=torch.uint8, device=value.device)
            yield empty.set_(value, 0, (value.nbytes(),), (1,))
        elif depth and isinstance(value, (dict, list, tuple)):
            if isinstance(value, dict):
                value = () if all(key in value for key in OPTIMIZER) else value.values()
            for each in value:
                yield from self._tensors(each, depth - 1)
