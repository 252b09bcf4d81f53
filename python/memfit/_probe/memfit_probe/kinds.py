"""What kind of card there is, told without touching it.

Libraries ask for it when they are imported, to choose among their kernels. A process that is to be forked has
not used the card, and would have to stop in the middle of its imports; the catalogue knows the answer.
"""

import contextlib
import functools


class Properties:
    """A card's properties: what the catalogue knows, and anything else from the card itself."""

    def __init__(self, ask, number, card):
        self._ask = functools.partial(ask, number)
        self.name = card["device"]["name"]
        self.major, self.minor = kind(card)
        self.total_memory = card["device"]["memory"]

    def __getattr__(self, name):
        return getattr(self._ask(), name)


def kind(card):
    """Its compute capability."""
    return tuple(map(int, card["device"]["compute_capability"].split(".")))


@contextlib.contextmanager
def told(torch, cards):
    """As long as this lasts, PyTorch tells the cards' kinds from the catalogue."""
    cuda = torch.cuda
    kinds = [kind(card) for card in cards]
    names = [card["device"]["name"] for card in cards]
    ask = cuda.get_device_properties
    properties = [Properties(ask, number, card) for number, card in enumerate(cards)]
    lasts = True

    def instead(name, answer):
        original = getattr(cuda, name)

        @functools.wraps(original)
        def ask(*args, **kwargs):
            # Whoever took this function for good is answered by the card later.
            known = answer(*args, **kwargs) if lasts and not cuda.is_initialized() else None
            return original(*args, **kwargs) if known is None else known

        setattr(cuda, name, ask)
        return original

    def of(table):
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
        "get_device_capability": of(kinds),
        "get_device_name": of(names),
        "get_device_properties": of(properties),
        # Whoever chooses another one uses the card.
        "current_device": lambda: 0,
        "is_bf16_supported": bf16,
    }
    originals = {name: instead(name, answer) for name, answer in answers.items() if hasattr(cuda, name)}
    try:
        yield
    finally:
        lasts = False
        for name, original in originals.items():
            setattr(cuda, name, original)
