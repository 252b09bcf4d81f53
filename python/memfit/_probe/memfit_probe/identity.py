"""Values that belong to objects, for as long as these live. Knows nothing of torch."""

import weakref


class ByIdentity:
    """Keeps a value for each object that it is given.

    An address alone is no name: where a script makes and drops models in a loop, the next one may lie where
    the last one lay.
    """

    def __init__(self):
        self._entries = {}

    def get(self, thing, otherwise=None):
        """The object's value."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else otherwise

    def things(self):
        """The objects that have a value, and live."""
        found = [reference() for reference, _ in list(self._entries.values())]
        return [thing for thing in found if thing is not None]

    def put(self, thing, value):
        """Keeps a value for an object; those of objects that are gone make room."""
        key = id(thing)
        try:
            gone = weakref.ref(thing, lambda reference: self._forget(key, reference))
        except TypeError:
            # A list has no weak references: it is kept, so that its address stays its own.
            self._entries[key] = (lambda: thing), value
        else:
            self._entries[key] = gone, value
        return value

    def _forget(self, key, reference):
        if self._entries.get(key, (None,))[0] is reference:
            del self._entries[key]
