"""Finds copies of a model's parameters that belong to no module: averaged weights as a list of tensors, or a
saved state.

The first search runs before the first backward pass: tensors whose shapes match the parameters one by one,
or those that are trained, are a copy. Later, a list of gradients would match as well: at the end, only
dictionaries that `state_dict` returned are taken for copies, as the best weights so far.
"""

import gc
from collections import OrderedDict

from . import watch as codes

# Tensors of a list or a dictionary that is taken for a copy.
MIN_TENSORS = 2


def note(notes, roots):
    """Record the copies of these modules' parameters."""
    by_order, by_name = {}, []
    for root in roots:
        every = [(name, each) for name, each in root.named_parameters() if notes.addresses(each)]
        trained = [(name, each) for name, each in every if each.requires_grad]
        for named in (every, trained) if len(trained) < len(every) else (every,):
            # A single tensor with a matching shape may be anything.
            if len(named) < MIN_TENSORS:
                continue
            shapes = tuple(each.shape for _, each in named)
            by_order.setdefault(len(shapes), []).append((shapes, [each for _, each in named]))
            by_name.append(dict(named))
    if not by_order:
        return
    own = {address for names in by_name for each in names.values() for address in notes.addresses(each)}
    copies = []
    for held in gc.get_objects():
        if type(held) in (list, tuple) and len(held) in by_order:
            copies.extend(_in_order(notes, held, by_order[len(held)]))
        elif type(held) in (dict, OrderedDict):
            for names in by_name:
                copies.extend(_by_name(notes, held, names))
    notes.note_owners(
        codes.PARAMETERS,
        [pair for pair in copies if not own.intersection(notes.addresses(pair[0]))],
    )


def note_states(notes, roots):
    """Record saved states of these modules, whenever they were made."""
    by_name = [dict(root.named_parameters()) for root in roots]
    by_name = [names for names in by_name if any(notes.addresses(each) for each in names.values())]
    if not by_name:
        return
    own = {address for names in by_name for each in names.values() for address in notes.addresses(each)}
    copies = []
    for held in gc.get_objects():
        # A state has the versions of its modules, which `copy.deepcopy` keeps.
        if type(held) is OrderedDict and hasattr(held, "_metadata"):
            for names in by_name:
                copies.extend(_by_name(notes, held, names))
    notes.note_owners(
        codes.PARAMETERS,
        [pair for pair in copies if not own.intersection(notes.addresses(pair[0]))],
    )


def _is_copy(notes, each):
    # Results computed from the parameters may have their shapes, too, but have a graph.
    return type(each) in notes.plain and each.is_cuda and each.grad_fn is None


def _in_order(notes, held, known):
    if not all(_is_copy(notes, each) for each in held):
        return []
    for shapes, parameters in known:
        if all(each.shape == shape for each, shape in zip(held, shapes, strict=True)):
            return notes.owned_like(held, parameters)
    return []


def _by_name(notes, held, names):
    """Match a dictionary with all of the parameters' names."""
    if len(held) < len(names) or not all(name in held for name in names):
        return []
    found = [held[name] for name in names]
    if not all(
        _is_copy(notes, each) and each.shape == like.shape
        for each, like in zip(found, names.values(), strict=True)
    ):
        return []
    return notes.owned_like(found, names.values())
