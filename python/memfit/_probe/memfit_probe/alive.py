"""Lists the modules that a script has, also in a fork, whose garbage collector knows only later objects."""

import gc
import weakref

# Modules that were made before the garbage collector was told to leave existing objects alone.
_earlier = []


def freeze(kind):
    """Exclude existing objects from the garbage collector, and remember the modules among them."""
    _earlier.extend(weakref.ref(each) for each in _tracked(kind))
    gc.freeze()


def modules(kind):
    """Return all modules."""
    earlier = [each for each in (known() for known in _earlier) if each is not None]
    return list({id(each): each for each in (*earlier, *_tracked(kind))}.values())


def _tracked(kind):
    # Checks the type only: an `isinstance` check could instantiate lazy objects.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]
