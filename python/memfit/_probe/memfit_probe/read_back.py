"""Numbers that the script reads back from the card: of which type they are, and at which line.

The device sees bytes. It takes an unknown number for an integer, which may become a size, unless it is told
here that it is none.
"""

import functools

from . import channel, device
from .oom import frames_here, stack

# Of `torch.Tensor`. Each returns numbers, or a tensor of the host's.
READERS = ("item", "tolist", "cpu", "__float__", "__bool__")
# These make an integer of whatever they read.
INTEGER_READERS = ("__int__", "__index__")
# Reads of more bytes are reads of data, as the device sees it.
MAX_BYTES = 4096


def arm(session):
    """Watches what reads numbers."""
    known = device.find()
    if known is None:
        return
    tensor = session.torch.Tensor
    for name in READERS:
        setattr(tensor, name, _watched(session, known, getattr(tensor, name), False))
    for name in INTEGER_READERS:
        setattr(tensor, name, _watched(session, known, getattr(tensor, name), True))


def _watched(session, known, original, makes_integer):
    is_compiling = session.is_compiling
    plain = (session.torch.Tensor, session.torch.nn.Parameter)

    @functools.wraps(original)
    def read(self, *args, **kwargs):
        if type(self) not in plain or not self.is_cuda or is_compiling() or self.nbytes > MAX_BYTES:
            return original(self, *args, **kwargs)
        floats = self.is_floating_point() or self.is_complex()
        before = known.reading(floats and not makes_integer)
        try:
            return original(self, *args, **kwargs)
        finally:
            if known.reading(0) != before:
                tell(session)

    return read


def tell(session):
    """An integer was read that nobody computed: tells the line, once."""
    frames = stack(list(frames_here()))
    key = ("read-back", *frames[:1])
    if frames and key not in session.told:
        session.told.add(key)
        channel.send("read_back", place=frames[0])
