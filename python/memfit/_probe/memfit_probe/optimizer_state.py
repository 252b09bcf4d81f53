"""Finds the tensors in an optimizer's state, also in the objects and collections that hold them."""

import itertools

from . import sparse

# Maximum number of values checked in the state of one parameter.
MAX_VALUES = 1024
# Attributes of modules and of optimizers, whose tensors belong to others.
OTHERS = ("_parameters", "param_groups")


def tensors(optimizer):
    """Yield pairs of a parameter and a tensor that its state holds."""
    for parameter, state in optimizer.state.items():
        for value in _tensors(state):
            if value is not parameter and value._base is not parameter:
                yield parameter, value


def nbytes(optimizer):
    """Return the bytes of GPU memory in an optimizer's state."""
    return sum(sparse.nbytes(value) for _, value in tensors(optimizer) if value.is_cuda)


def _tensors(state):
    """Yield the tensors in one parameter's state, each once."""
    waiting, visited = [state], set()
    for _ in itertools.repeat(None, MAX_VALUES):
        if not waiting:
            return
        value = waiting.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        # Objects that hold a packed state may say where it is, as a tensor does.
        if hasattr(value, "data_ptr"):
            yield value
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (tuple, list)):
            waiting.extend(value)
        elif not any(hasattr(value, name) for name in OTHERS):
            waiting.extend(getattr(value, "__dict__", {}).values() if not isinstance(value, type) else ())
