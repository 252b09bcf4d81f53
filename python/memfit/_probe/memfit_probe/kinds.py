"""Answers questions about the kind of GPU from the catalogue, without using the device.

Libraries ask on import, to choose among their kernels. A process that will be forked must not have used the
GPU, and would have to stop in the middle of its imports.
"""

import contextlib
import functools


class Properties:
    """A GPU's properties: from the catalogue where it has them, and otherwise from the device itself."""

    def __init__(self, ask, number, card):
        self._ask = functools.partial(ask, number)
        self.name = card["device"]["name"]
        self.major, self.minor = kind(card)
        self.total_memory = card["device"]["memory"]

    def __getattr__(self, name):
        return getattr(self._ask(), name)


def kind(card):
    """Return the compute capability."""
    return tuple(map(int, card["device"]["compute_capability"].split(".")))


@contextlib.contextmanager
def answered_from_catalogue(torch, cards):
    """Within this context, PyTorch answers questions about the GPUs from the catalogue."""
    cuda = torch.cuda
    kinds = [kind(card) for card in cards]
    names = [card["device"]["name"] for card in cards]
    ask = cuda.get_device_properties
    properties = [Properties(ask, number, card) for number, card in enumerate(cards)]
    lasts = True

    def replace(name, answer):
        original = getattr(cuda, name)

        @functools.wraps(original)
        def ask(*args, **kwargs):
            # A caller that kept a reference to this function gets the device's own answer later.
            known = answer(*args, **kwargs) if lasts and not cuda.is_initialized() else None
            return original(*args, **kwargs) if known is None else known

        setattr(cuda, name, ask)
        return original

    def looked_up(table):
        def answer(device=None):
            number = (
                0
                if device is None
                else device
                if isinstance(device, int)
                else torch.device(device).index or 0
            )
            return table[number] if 0 <= number < len(table) else None

        return answer

    def bf16(*_args, **_kwargs):
        return True if kinds and kinds[0][0] >= 8 else None

    answers = {
        "get_device_capability": looked_up(kinds),
        "get_device_name": looked_up(names),
        "get_device_properties": looked_up(properties),
        # Choosing another device uses the GPU.
        "current_device": lambda: 0,
        "is_bf16_supported": bf16,
    }
    originals = {name: replace(name, answer) for name, answer in answers.items() if hasattr(cuda, name)}
    try:
        yield
    finally:
        lasts = False
        for name, original in originals.items():
            setattr(cuda, name, original)
