"""Numbers that the script reads back from the card: of which type they are, and at which line.

The device sees bytes. It takes an unknown number for an integer, which may become a size, unless it is told
here that it is none. A floating-point number that nobody computed is followed, until something depends on it.
"""

import functools

from . import channel, device, imports, unknown_floats
from .oom import frames_here, stack

# Of `torch.Tensor`: these return numbers that can be followed, ...
FOLLOWED = ("item", "tolist")
# ... a tensor of the host's, a plain number or a truth: what becomes of it nobody sees.
UNFOLLOWED = ("cpu", "__float__", "__bool__")
# These make an integer of whatever they read.
INTEGERS = ("__int__", "__index__")
# Reads of more bytes are reads of data, as the device sees it.
MAX_BYTES = 4096
# The device's numbers for the types, by the bits of a real number.
CODES = {"float16": 1, "bfloat16": 2, "float32": 3, "float64": 4, "complex64": 3, "complex128": 4}
# The name of the assumption that a number decides something.
DECIDES = b"deciding-number"


def arm(session):
    """Watches what reads numbers."""
    known = device.find()
    if known is not None:
        Reads(session, known).arm()


class Reads:
    """The methods of tensors that read numbers."""

    def __init__(self, session, known):
        self.session = session
        self.known = known
        torch = session.torch
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.codes = {getattr(torch, name): code for name, code in CODES.items()}
        self.number = unknown_floats.kind(self.decides)
        # A compiler looks at the types of numbers.
        self.follows = True

    def arm(self):
        tensor = self.session.torch.Tensor
        for name in (*FOLLOWED, *UNFOLLOWED, *INTEGERS):
            setattr(tensor, name, self._watched(name, getattr(tensor, name)))
        imports.before_compiling(self._leave)

    def _leave(self):
        self.follows = False

    def _watched(self, name, original):
        is_compiling, known = self.session.is_compiling, self.known
        sign = -1 if name in INTEGERS else 1

        @functools.wraps(original)
        def read(tensor, *args, **kwargs):
            if (
                type(tensor) not in self.plain
                or not tensor.is_cuda
                or is_compiling()
                or tensor.nbytes > MAX_BYTES
            ):
                return original(tensor, *args, **kwargs)
            before, floats = known.reading(sign * self.codes.get(tensor.dtype, 0)), known.unknown_floats()
            try:
                result = original(tensor, *args, **kwargs)
            finally:
                integers = known.reading(0) != before
                if integers:
                    tell(self.session)
            if not integers and known.unknown_floats() != floats:
                return self._unknown(name, result)
            return result

        return read

    def _unknown(self, name, result):
        """What the script gets of numbers that nobody computed."""
        if name in FOLLOWED and self.follows:
            return self._followed(result)
        if name in UNFOLLOWED:
            self.decides()
        return result

    def _followed(self, result):
        if type(result) is list:
            return [self._followed(each) for each in result]
        return self.number(result) if type(result) is float else result

    def decides(self):
        """Something depends on a number that nobody computed: counts that, and tells the line."""
        self.known.assumed(DECIDES)
        tell(self.session)


def tell(session):
    """A number was read that nobody computed, and more than printed: tells the line, once."""
    frames = stack(list(frames_here()))
    key = ("read-back", *frames[:1])
    if frames and key not in session.told:
        session.told.add(key)
        channel.send("read_back", place=frames[0])
