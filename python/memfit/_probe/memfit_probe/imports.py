"""Hooks around the import of modules, and lookups in the loaded ones."""

import functools
import sys

from . import channel

_waiting = {}
_around = {}
_finder = None


def after(name, function):
    """Call `function(module)` once `name` is imported, or at once if it already is."""
    if _is_loaded(name):
        function(sys.modules[name])
        return
    _waiting.setdefault(name, []).append(function)
    _listen()


def _is_loaded(name):
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def spec_of(name, path, without=None):
    """Return the specification of a module that is to be imported, or None if no finder knows it."""
    for finder in sys.meta_path:
        find = None if finder is without else getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None


def loaded():
    """Yield each loaded module with its namespace. `getattr` would trigger the import of a lazy module."""
    for module in list(sys.modules.values()):
        try:
            yield module, object.__getattribute__(module, "__dict__")
        except AttributeError:
            # An object without a namespace stands in for a module.
            continue


def replace(module, name, function):
    """Put a function in the place of a module's, also where other modules have imported it by that name."""
    original = getattr(module, name)
    setattr(module, name, function)
    for holder, namespace in loaded():
        if namespace.get(name) is original:
            setattr(holder, name, function)


def around(name, begin, end):
    """Call `begin()` right before the code of `name` runs and `end()` right after it, also where it fails.

    Do nothing if the module is loaded already.
    """
    if not _is_loaded(name):
        _around.setdefault(name, []).append((begin, end))
        _listen()


def before_compiling(function):
    """Call `function()` each time before Dynamo traces any of the script's code."""

    def listen(module):
        context = module.OptimizeContext
        made = context.__init__

        @functools.wraps(made)
        def init(*args, **kwargs):
            function()
            return made(*args, **kwargs)

        context.__init__ = init

    after("torch._dynamo.eval_frame", listen)


def _listen():
    global _finder
    if _finder is None:
        _finder = _Finder()
        sys.meta_path.insert(0, _finder)


def _call(function, module):
    """Call a function that expects a library's module. A script may have another module of the same name."""
    try:
        function(module)
    except Exception as error:
        from .oom import is_library

        if is_library(getattr(module, "__file__", None) or ""):
            channel.remark(
                "probe-failed", error=f"{type(error).__name__}: {error}", where=f"in {module.__name__}"
            )


class _Finder:
    """Delegates to the other finders, and wraps the loader of a module that has callbacks."""

    def find_spec(self, name, path=None, target=None):
        if name not in _waiting and name not in _around:
            return None
        spec = spec_of(name, path, without=self)
        execute = getattr(spec.loader, "exec_module", None) if spec is not None else None
        if execute is None:
            return None
        loader = spec.loader

        def exec_module(module):
            # Only this import sees the wrapper: the loader is restored before the module's code runs.
            del loader.exec_module
            surroundings = _around.get(name, ())
            for begin, _ in surroundings:
                begin()
            try:
                execute(module)
            finally:
                for _, end in surroundings:
                    end()
            _around.pop(name, None)
            for function in _waiting.pop(name, ()):
                _call(function, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return None
        return spec
