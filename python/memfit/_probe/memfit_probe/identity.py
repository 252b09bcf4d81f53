"""Values attached to objects for as long as these live. Does not use torch."""

import weakref


class ByIdentity:
    """Stores a value for each object.

    An address alone does not identify an object: if a script creates and deletes models in a loop, the next
    one may have the same address.
    """

    def __init__(self):
        self._entries = {}

    def get(self, thing, otherwise=None):
        """Return the object's value."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else otherwise

    def things(self):
        """Return the live objects that have a value."""
        found = [reference() for reference, _ in list(self._entries.values())]
        return [thing for thing in found if thing is not None]

    def store(self, thing, value):
        """Store a value for an object; entries of deleted objects are removed."""
        key = id(thing)
        try:
            gone = weakref.ref(thing, lambda reference: self._forget(key, reference))
        except TypeError:
            # A list has no weak references: it is kept alive, so that its address stays unique.
            self._entries[key] = (lambda: thing), value
        else:
            self._entries[key] = gone, value
        return value

    def _forget(self, key, reference):
        if self._entries.get(key, (None,))[0] is reference:
            del self._entries[key]
