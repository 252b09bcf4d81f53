"""Finds the models that train together: optimizers may update modules outside of the model that is called
first.
"""

import sys
import types

from . import alive, handles


def together(torch, model, optimizers):
    """Combine the model that is called first with others that train."""
    others = _beside(torch.nn.Module, model, optimizers)
    if not others:
        return model
    from memfit_levers.several import Several

    names = _names(torch.nn.Module, others)
    return Several(model, {names.get(id(other), type(other).__name__): other for other in others})


def _beside(kind, model, optimizers):
    """Return the largest modules with trained parameters that neither contain this model nor belong to it."""
    places = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), len(places))
    for parameter in model.parameters():
        places.pop(id(parameter), None)
    if not places:
        return []
    present = [each for each in alive.modules(kind) if "_modules" in each.__dict__]
    holders = {}
    for each in present:
        for part in each._modules.values():
            if part is not None:
                holders.setdefault(id(part), []).append(each)
    above = {id(each) for each in _all_above(model, holders)}
    within = {id(each) for each in model.modules()}
    found = {}
    for each in present:
        own = [places[id(parameter)] for parameter in each._parameters.values() if id(parameter) in places]
        if not own or id(each) in within or id(each) in above:
            continue
        largest = each
        while True:
            outer = next((one for one in holders.get(id(largest), ()) if id(one) not in above), None)
            if outer is None or outer is largest:
                break
            largest = outer
        known = found.get(id(largest))
        found[id(largest)] = (min([*own, *([known[0]] if known else [])]), largest)
    return [largest for _, largest in sorted(found.values(), key=lambda entry: entry[0])]


def _all_above(model, holders):
    """Yield all modules that contain the model, at any distance."""
    waiting, seen = [model], {id(model)}
    while waiting:
        for outer in holders.get(id(waiting.pop()), ()):
            if id(outer) not in seen:
                seen.add(id(outer))
                waiting.append(outer)
                yield outer


def _names(kind, wanted):
    """Return the script's names for the models: variables and attributes visible in its frames."""
    names, ids = {}, {id(each) for each in wanted}
    for table in _tables(kind):
        for name, value in list(table.items()):
            if id(value) in ids and isinstance(name, str) and name.isidentifier():
                names.setdefault(id(value), name)
    return names


def _tables(kind):
    """Yield the variables of the script's frames, innermost first; then the attributes of their values."""
    frames = [handles.variables(frame) for frame in handles.frames()]
    main = sys.modules.get("__main__")
    if main is not None:
        frames.append(vars(main))
    yield from frames
    for table in frames:
        for value in list(table.values()):
            if issubclass(type(value), kind):
                yield value._modules
            elif type(value) is not types.ModuleType and isinstance(getattr(value, "__dict__", None), dict):
                yield value.__dict__
