"""Imports PyTorch's compiler when something uses it, not when an optimizer makes its first step or when
torchvision is imported.

The compiler takes as long to import as the rest of PyTorch. An optimizer imports it for two functions only,
which do nothing where nothing is compiled: `graph_break`, and `disable` around PyTorch's own functions;
torchvision imports `utils.is_compile_supported`, which it hardly calls. Until something else is used, modules
stand in the place of these two that have the three functions. Any other use runs the code of the real ones in
the same modules, so that references to them stay right. On a real GPU PyTorch is left as it is.
"""

import os
import re
import sys
import threading
import types

from . import imports

NAME, UTILS = "torch._dynamo", "torch._dynamo.utils"
# Modules whose functions PyTorch asks it to disable: each mode of dispatch is one.
LIBRARIES = ("torch.", f"{__package__}.")
# One for both modules: the code of each imports the other. Another thread waits.
_lock = threading.RLock()


def arm(torch):
    """Let the compiler wait, unless it is loaded."""
    spec = imports.spec_of(NAME, torch.__path__) if NAME not in sys.modules else None
    if spec is None:
        return
    compiler = _Compiler(spec, torch.__path__)
    torch._dynamo = sys.modules[NAME] = compiler.module
    path = spec.submodule_search_locations
    spec = imports.spec_of(UTILS, path)
    if spec is not None:
        vars(compiler.module)["utils"] = sys.modules[UTILS] = _Utils(spec, path, compiler).module


class _Waiting(types.ModuleType):
    """A module whose code has not run. Once it has, it is a plain module, which `super` would refuse here."""

    def __getattr__(self, name):
        # Code that looks for a name in all loaded modules may not find further modules when it goes on.
        run = vars(self).get("_run")
        if run is not None and not run.may_define(name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._load()
        return types.ModuleType.__getattribute__(self, name)

    def __setattr__(self, name, value):
        self._load()
        types.ModuleType.__setattr__(self, name, value)

    def __dir__(self):
        self._load()
        return types.ModuleType.__dir__(self)

    def _load(self):
        run = vars(self).get("_run")
        if run is not None:
            run()


class _Run:
    """Runs the code of a module, once."""

    def __init__(self, spec, path):
        self.name = spec.name
        self.path = path
        self.begun = False
        self.words = None
        self.module = _Waiting(spec.name)
        # It says so to those who ask whether a module is loaded.
        spec._initializing = True
        known = {"__file__": spec.origin, "__package__": spec.parent, "__spec__": spec, "_run": self}
        self.stood_in = self.functions()
        vars(self.module).update(known, **self.stood_in)

    def functions(self):
        """Return what can be used before the code has run, by name."""
        raise NotImplementedError

    def may_define(self, name):
        """Return `False` if the module would have no such name: neither its source nor its folder has it."""
        # An import of names asks each module whether it is a package.
        if name == "__path__":
            return self.module.__spec__.submodule_search_locations is not None
        if self.words is None:
            self.words = _words(self.module.__file__)
        if not self.words or name in self.words:
            return True
        folders = self.module.__spec__.submodule_search_locations or ()
        return any(os.path.exists(os.path.join(each, name + end)) for each in folders for end in ("", ".py"))

    def __call__(self):
        with _lock:
            if self.begun:
                return
            self.begun = True
            before = dict(vars(self.module))
            try:
                self.execute()
            except BaseException:
                vars(self.module).clear()
                vars(self.module).update(before)
                self.begun = False
                raise
            self.replace_functions()

    def execute(self):
        module = self.module
        spec = imports.spec_of(self.name, self.path)
        spec._initializing = True
        vars(module).update(__spec__=spec, __loader__=spec.loader)
        if spec.submodule_search_locations is not None:
            vars(module)["__path__"] = spec.submodule_search_locations
        spec.loader.exec_module(module)
        spec._initializing = False
        del vars(module)["_run"]
        module.__class__ = types.ModuleType

    def replace_functions(self):
        """Put the real functions where the ones that stood in for them were taken to."""
        raise NotImplementedError


class _Compiler(_Run):
    def __init__(self, spec, path):
        self.disabled = []
        super().__init__(spec, path)

    def functions(self):
        return {"graph_break": _graph_break, "disable": self.disable}

    def disable(self, function=None, *arguments, **options):
        """Answer PyTorch, which asks it for functions of its own and of this package: nothing has to be
        disabled yet.
        """
        known = isinstance(function, types.FunctionType) and function.__module__.startswith(LIBRARIES)
        if known and len(arguments) == 1:
            self.disabled.append((function, arguments, options))
            return function
        self()
        return self.module.disable(function, *arguments, **options)

    def replace_functions(self):
        for function, arguments, options in self.disabled:
            # Where PyTorch keeps its answer.
            setattr(function, "__dynamo_disable", self.module.disable(function, *arguments, **options))


class _Utils(_Run):
    def __init__(self, spec, path, compiler):
        self.compiler = compiler
        super().__init__(spec, path)

    def functions(self):
        return {"is_compile_supported": self.is_compile_supported}

    def __call__(self):
        with _lock:
            # As an import does, which runs the code of the package first. That runs this one as a rule.
            if not self.begun:
                self.compiler()
            super().__call__()

    def is_compile_supported(self, device_type):
        self()
        return self.module.is_compile_supported(device_type)

    def replace_functions(self):
        for _, namespace in imports.loaded():
            for name, function in self.stood_in.items():
                if namespace.get(name) is function:
                    namespace[name] = vars(self.module)[name]


def _words(file):
    """Return the names in a module's source; none if they do not tell what the module defines."""
    try:
        with open(file, encoding="utf-8") as opened:
            source = opened.read()
    except (OSError, TypeError, UnicodeDecodeError):
        return set()
    # It takes all names of another module, or has a function for the others.
    if re.search(r"^(def __getattr__|__getattr__ *=|.*import \*)", source, re.MULTILINE):
        return set()
    return set(re.findall(r"\w+", source))


def _graph_break(*arguments, **options):
    """Outside of compiled code it does nothing."""
