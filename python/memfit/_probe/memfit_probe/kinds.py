"""Answers questions about the kind of GPU from the catalogue, without using the device.

Libraries ask on import, to choose among their kernels. A process that will be forked must not have used the
GPU, and would have to stop in the middle of its imports.
"""

import contextlib
import functools
import sys

# The properties that the script has queried: "name", "capability", "memory", "bf16".
ASKED = set()
# Functions that return the GPU's memory size.
SIZES = ("mem_get_info", "get_device_properties")
# True if the script, or a library other than PyTorch, has called one of them.
asks_size = False


class Properties:
    """A GPU's properties: from the catalogue where it has them, and otherwise from the device itself."""

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
    """Record from now on whether the script queries the GPU's memory size, which may affect its behaviour."""

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
    """Return the compute capability."""
    return tuple(map(int, card["device"]["compute_capability"].split(".")))


@contextlib.contextmanager
def answered_from_catalogue(torch, cards):
    """Within this context, PyTorch answers questions about the GPUs from the catalogue, and `ASKED` grows."""
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

    def index(device):
        """Return the number of a GPU, given as PyTorch takes it; -1 lets PyTorch itself say what is wrong."""
        if device is None or isinstance(device, int):
            return device or 0
        if isinstance(device, cuda.device):
            return device.idx
        device = torch.device(device)
        return device.index or 0 if device.type == "cuda" else -1

    def looked_up(table, fact=None):
        def answer(device=None):
            if fact is not None:
                ASKED.add(fact)
            number = index(device)
            return table[number] if 0 <= number < len(table) else None

        return answer

    def bf16(*_args, **_kwargs):
        ASKED.add("bf16")
        return True if kinds and kinds[0][0] >= 8 else None

    answers = {
        "get_device_capability": looked_up(kinds, "capability"),
        "get_device_name": looked_up(names, "name"),
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
