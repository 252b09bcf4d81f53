"""Finds the batch size of a script without a loader: in a variable, a configuration or its arguments.

Such a script makes its batches itself and reads that number each time. The search covers the names visible in
its frames that suggest a batch size and whose value is the number of samples that the model was called with.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import sys
import types

from .oom import HERE, LIBRARIES

NAME = re.compile(
    r"^(train|training|per_device_train|per_gpu_train|micro|mini|device|local)?_?(batch|batch_size|batchsize|bs|bsz|b)$",
    re.IGNORECASE,
)
MAX_FRAMES = 32
# The probe's own code is not part of the script.
PROBE = os.path.dirname(HERE)


def arm(planned):
    """Set the batch size at the first use of the GPU: arguments were read by then, but no batch was made."""
    core = planned.session.torch._C
    init = core._cuda_init

    def begin():
        core._cuda_init = init
        planned.retune()
        return init()

    core._cuda_init = begin


def find(size):
    """Return the names that hold this number."""
    return sorted({name for name, _ in _assignments(size)})


def set_to(size, new):
    """Replace this number with another; return `True` if it was found."""
    places = _assignments(size)
    for _, assign in places:
        with contextlib.suppress(Exception):
            assign(new)
    return bool(places)


def _assignments(size):
    """Return pairs of a name and a function that assigns to it."""
    found, seen = [], set()
    main = sys.modules.get("__main__")
    if main is not None:
        _search_table(vars(main), size, found, seen)
    for frame in frames():
        if frame.f_code.co_name != "<module>":
            _search_frame(frame, size, found, seen)
        _search_table(frame.f_globals, size, found, seen)
    return found


def frames():
    """Yield the script's own frames, innermost first."""
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        if not frame.f_code.co_filename.startswith((*LIBRARIES, PROBE, "<")):
            yield frame
        frame = frame.f_back


def name_of(wanted):
    """Return the name of a variable or attribute that refers to an object, or None."""
    for frame in frames():
        for name, value in variables(frame).items():
            if value is wanted and name != "self":
                return name
            # Not with `getattr`, which some objects answer by creating the attribute.
            with contextlib.suppress(AttributeError):
                inside = object.__getattribute__(value, "__dict__")
                if isinstance(value, types.ModuleType) or not isinstance(inside, dict):
                    continue
                for table in (inside, inside.get("_modules") or {}):
                    for attribute, part in list(table.items()):
                        if part is wanted and isinstance(attribute, str):
                            return attribute
    return None


def _matches(name, value, size):
    return isinstance(name, str) and type(value) is int and value == size and NAME.match(name) is not None


def variables(frame):
    """Return the variables of a frame by name."""
    from memfit_levers.variables import variables

    return variables(frame)


def _search_frame(frame, size, found, seen):
    for name, value in variables(frame).items():
        if _matches(name, value, size):
            found.append((name, _local(frame, name)))
        else:
            _search_value(value, size, found, seen)


def _local(frame, name):
    def assign(new):
        from memfit_levers.variables import set_variable

        set_variable(frame, name, new)

    return assign


def _search_table(table, size, found, seen):
    if id(table) in seen:
        return
    seen.add(id(table))
    for name, value in list(table.items()):
        if _matches(name, value, size):
            found.append((name, lambda new, name=name: table.__setitem__(name, new)))
        else:
            _search_value(value, size, found, seen)


def _search_value(value, size, found, seen):
    """Search configurations: objects that hold names and numbers and are not part of a model."""
    if type(value) is dict:
        if id(value) not in seen and len(value) < 1000:
            seen.add(id(value))
            for name, inner in list(value.items()):
                if _matches(name, inner, size):
                    found.append((name, lambda new, name=name: value.__setitem__(name, new)))
        return
    plain = isinstance(value, (argparse.Namespace, types.SimpleNamespace)) or dataclasses.is_dataclass(value)
    configures = "config" in type(value).__name__.lower() or "args" in type(value).__name__.lower()
    if not (plain or configures) or id(value) in seen:
        return
    seen.add(id(value))
    table = value if isinstance(value, type) else getattr(value, "__dict__", {})
    table = vars(table) if isinstance(table, type) else table
    for name, inner in list(table.items()):
        if _matches(name, inner, size):
            found.append((name, lambda new, name=name: object.__setattr__(value, name, new)))
