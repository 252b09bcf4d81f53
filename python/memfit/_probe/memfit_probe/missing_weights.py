"""Objects in place of missing checkpoints, and what lets models load them."""

import sys
import weakref

from .oom import variables_of
from .wrapping import alike


def accepting(original):
    """Make `load_state_dict` accept a missing checkpoint."""

    @alike(original)
    def load_state_dict(self, state_dict, *args, **kwargs):
        if not isinstance(state_dict, Missing):
            return original(self, state_dict, *args, **kwargs)
        if not hasattr(self, "parameters"):
            return None
        from torch.nn.modules.module import _IncompatibleKeys

        return _IncompatibleKeys([], [])

    return load_state_dict


def completing(original):
    """Make a module's `load_state_dict` take its own values for entries that the script would have copied
    from a missing checkpoint, one by one: such a loop found none.
    """

    @alike(original)
    def load_state_dict(self, state_dict, *args, **kwargs):
        if Missing.copied and isinstance(state_dict, dict) and not isinstance(state_dict, Missing):
            own = self.state_dict()
            # The script may have given what it was handed other names.
            gone = [key for key, value in state_dict.items() if key not in own and is_handed(value)]
            if gone:
                state_dict = type(state_dict)(
                    (key, value) for key, value in state_dict.items() if key not in gone
                )
            # A dictionary with entries of another model alone is a mistake of the script's.
            if own.keys() - state_dict.keys() and (not state_dict or own.keys() & state_dict.keys()):
                state_dict = type(state_dict)({**own, **state_dict})
        return original(self, state_dict, *args, **kwargs)

    return load_state_dict


# The tensors that scripts found in missing checkpoints, by their identities.
HANDED = {}


def is_handed(value):
    """Return `True` for a tensor that the script found in a missing checkpoint."""
    known = HANDED.get(id(value))
    return known is not None and known() is value


class AnySize:
    """The shape, or an extent, of a missing tensor: what the script compares it with."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __getitem__(self, index):
        return self

    def same(self, *others):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __pow__ = same


class Missing(dict):
    """A missing checkpoint: all its entries are missing as well, and can be loaded."""

    # `True` if the script went through the entries of one, to copy them.
    copied = False

    def __init__(self, name):
        super().__init__()
        self.name = name

    def __iter__(self):
        return iter(self._entries(sys._getframe(1)))

    def keys(self):
        return self._entries(sys._getframe(1)).keys()

    def values(self):
        return self._entries(sys._getframe(1)).values()

    def items(self):
        return self._entries(sys._getframe(1)).items()

    def _entries(self, frame):
        """Return what a script that goes through a checkpoint finds: the entries of the model whose own state
        it compares them with, if its function has one, as a script may end where it could copy none.
        """
        Missing.copied = True
        own = next((value for value in variables_of(frame).values() if is_state(value)), None)
        if own is None:
            return {}
        HANDED.update((id(value), weakref.ref(value)) for value in own.values() if is_tensor(value))
        return dict(own)

    def __missing__(self, key):
        return Missing(f"{self.name}[{key!r}]")

    def __contains__(self, key):
        return True

    def get(self, key, default=None):
        # A counter starts at the script's default; anything else can be loaded.
        return self[key] if default is None else default

    def pop(self, key, *default):
        return default[0] if default else self[key]

    def __int__(self):
        return 0

    __index__ = __int__

    def __float__(self):
        return 0.0

    def __add__(self, other):
        return other

    __radd__ = __add__

    def __bool__(self):
        return True

    # A missing tensor, wherever it is and of whatever type.

    shape = AnySize()

    def size(self, dim=None):
        return self.shape

    def same(self, *args, **kwargs):
        return self

    to = cpu = cuda = float = half = bfloat16 = clone = detach = contiguous = same

    def __repr__(self):
        return f"<memfit: {self.name} does not exist>"


def is_state(value):
    """Return `True` for what a module's `state_dict` returns."""
    return isinstance(value, dict) and not isinstance(value, Missing) and hasattr(value, "_metadata")


def is_tensor(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
