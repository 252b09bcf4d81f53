"""What kind of card there is, told without touching it.

Libraries ask for it when they are imported, to choose among their kernels. A process that is to be forked has
not used the card, and would have to stop in the middle of its imports; the catalogue knows the answer.
"""

import contextlib
import functools
import sys

# The facts that were told so: "name", "capability", "memory", "bf16".
ASKED = set()
# Functions that tell how large a card is.
SIZES = ("mem_get_info", "get_device_properties")
# Whether the script, or a library beside PyTorch, has called one of them.
asks_size = False


class Properties:
    """A card's properties: what the catalogue knows, and anything else from the card itself."""

    def __init__(self, ask, number, card):
        self._ask = functools.partial(ask, number)
        major, minor = kind(card)
        memory = card["device"]["memory"]
        self._known = {"name": card["device"]["name"], "major": major, "minor": minor, "total_memory": memory}

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._known:
            ASKED.add({"name": "name", "total_memory": "memory"}.get(name, "capability"))
            return self._known[name]
        return getattr(self._ask(), name)


def watch(torch):
    """Notices from now on when the script asks how large the card is, which may decide what it does."""

    def noticing(original):
        @functools.wraps(original)
        def ask(*args, **kwargs):
            global asks_size
            module = sys._getframe(1).f_globals.get("__name__", "")
            if module.partition(".")[0] not in ("torch", "memfit_probe"):
                asks_size = True
            return original(*args, **kwargs)

        return ask

    for name in SIZES:
        wrapped = noticing(getattr(torch.cuda, name))
        for module in (torch.cuda, torch.cuda.memory):
            if hasattr(module, name):
                setattr(module, name, wrapped)


def kind(card):
    """Its compute capability."""
    return tuple(map(int, card["device"]["compute_capability"].split(".")))


@contextlib.contextmanager
def told(torch, cards):
    """As long as this lasts, PyTorch tells the cards' kinds from the catalogue, and `ASKED` grows."""
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

    def of(table, fact=None):
        def answer(device=None):
            if fact is not None:
                ASKED.add(fact)
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
        ASKED.add("bf16")
        return True if kinds and kinds[0][0] >= 8 else None

    answers = {
        "get_device_capability": of(kinds, "capability"),
        "get_device_name": of(names, "name"),
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
