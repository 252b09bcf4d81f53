"""Speeds up large random tensors on the host, where many tries start: initial weights, synthetic batches.

Drawing them takes longer than everything else in a try, and the virtual GPU does not keep uploads of that
size. So only the first values are drawn, and the others repeat them, in very large tensors by mapping the
same pages again; those of a parameter are not written at all, so that its memory is not used either.
"""

import functools
import random
import sys

from . import device, imports

# Number of elements from which on a tensor is shortened.
MIN_LONG = 1 << 20
# Number of elements that are drawn.
DRAWN_VALUES = 1 << 16
# In-place functions that draw each element independently.
FILLS = ("normal_", "uniform_", "log_normal_", "exponential_")
# Functions that create a tensor, with the function that fills it.
MAKERS = {"randn": "normal_", "rand": "uniform_"}


def seed(torch):
    """Seed all generators, so that this process draws the same numbers as others seeded here."""
    random.seed(0)
    torch.manual_seed(0)
    imports.after("numpy.random", _seed_numpys)


def seed_later_ones():
    """Seed the generator that does not exist yet: each fork of this process would seed its own differently.
    NumPy creates it at its first use.
    """
    if numpys() is None:
        imports.after("numpy.random", _seed_numpys)


def numpys():
    """Return NumPy's module of random numbers; None if nothing has used it."""
    return sys.modules.get("numpy.random")


def _seed_numpys(module):
    module.seed(0)


def arm(torch):
    """Activate it in this process and its children."""
    for name in FILLS:
        setattr(torch.Tensor, name, _shortened(torch, getattr(torch.Tensor, name)))
    # It processes all elements several times.
    torch.nn.init.trunc_normal_ = _shortened(torch, torch.nn.init.trunc_normal_)
    for name, fill in MAKERS.items():
        setattr(torch, name, _made(torch, getattr(torch, name), fill))


def _shortened(torch, original):
    @functools.wraps(original)
    def fill(tensor, *args, **kwargs):
        if not _is_long(torch, tensor):
            return original(tensor, *args, **kwargs)
        with torch.no_grad():
            row = tensor.detach().view(-1)
            original(row[:DRAWN_VALUES], *args, **kwargs)
            if not isinstance(tensor, torch.nn.Parameter):
                _repeat(row)
        return tensor

    return fill


def _is_long(torch, tensor):
    return (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() >= MIN_LONG
        and tensor.is_contiguous()
        # Cases that torch refuses are passed to torch.
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
    )


def _repeat(row):
    found = device.find()
    # A tensor's own storage: nothing else is in its pages.
    if found and row.nbytes == row.untyped_storage().nbytes() and not row.is_shared():
        period = DRAWN_VALUES * row.element_size()
        if found.repeat(row.data_ptr(), row.nbytes, period):
            return
    whole = row.numel() // DRAWN_VALUES * DRAWN_VALUES
    row[DRAWN_VALUES:whole].view(-1, DRAWN_VALUES).copy_(
        row[:DRAWN_VALUES].expand(whole // DRAWN_VALUES - 1, DRAWN_VALUES)
    )
    row[whole:].copy_(row[: row.numel() - whole])


def _made(torch, original, fill):
    @functools.wraps(original)
    def make(*size, **kwargs):
        numbers = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
        count = 1
        for number in numbers:
            if type(number) is not int or not set(kwargs) <= {"dtype", "device", "pin_memory"}:
                return original(*size, **kwargs)
            count *= number
        if count < MIN_LONG or torch.compiler.is_compiling():
            return original(*size, **kwargs)
        if torch.device(kwargs.get("device") or torch.get_default_device()).type != "cpu":
            return original(*size, **kwargs)
        return getattr(torch.empty(*size, **kwargs), fill)()

    return make
