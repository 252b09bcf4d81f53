"""Long rows of random numbers on the host, where many tries begin: a model's first weights, a batch that is
made up.

Drawing them takes longer than all else that a try does, and what is uploaded of that size is not kept by the
virtual card. So the first few are drawn, and the others repeat them; of a parameter they are not written at
all, so that its memory is not taken either.
"""

import functools
import random

from . import imports

# So many numbers are long.
LONG = 1 << 20
# So many of them are drawn.
DRAWN = 1 << 16
# In place; each number is drawn by itself.
FILLS = ("normal_", "uniform_", "log_normal_", "exponential_")
# New tensors, each with what fills it.
MAKERS = {"randn": "normal_", "rand": "uniform_"}


def seed(torch):
    """Has this process draw the same numbers as another one that is seeded here."""
    random.seed(0)
    torch.manual_seed(0)
    imports.after("numpy.random", lambda module: module.seed(0))


def arm(torch):
    """From here on, in this process and its children."""
    for name in FILLS:
        setattr(torch.Tensor, name, _shortened(torch, getattr(torch.Tensor, name)))
    # It goes over all numbers several times.
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
            original(row[:DRAWN], *args, **kwargs)
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
        and tensor.numel() >= LONG
        and tensor.is_contiguous()
        # What torch refuses is refused here too.
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
    )


def _repeat(row):
    whole = row.numel() // DRAWN * DRAWN
    row[DRAWN:whole].view(-1, DRAWN).copy_(row[:DRAWN].expand(whole // DRAWN - 1, DRAWN))
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
        if count < LONG or torch.compiler.is_compiling():
            return original(*size, **kwargs)
        if torch.device(kwargs.get("device") or torch.get_default_device()).type != "cpu":
            return original(*size, **kwargs)
        return getattr(torch.empty(*size, **kwargs), fill)()

    return make
