"""Imports PyTorch's compiler when something uses it, not when an optimizer makes its first step.

The compiler takes as long to import as the rest of PyTorch. An optimizer imports it for two functions
only, which do nothing where nothing is compiled: `graph_break`, and `disable` around PyTorch's own
functions. Until then a module stands in its place that has these two. Any other use runs the code of the
real one in the same module, so that references to it stay right. On a real GPU PyTorch is left as it is.
"""

import sys
import threading
import types

from . import imports

NAME = "torch._dynamo"


def arm(torch):
    """Let the compiler wait, unless it is loaded."""
    spec = imports.spec_of(NAME, torch.__path__) if NAME not in sys.modules else None
    if spec is not None:
        module = _Waiting(spec, torch.__path__)
        sys.modules[NAME] = torch._dynamo = module


class _Waiting(types.ModuleType):
    """A module whose code has not run. Once it has, it is a plain module, which `super` would refuse here."""

    def __init__(self, spec, path):
        super().__init__(spec.name)
        # It says so to those who ask whether a module is loaded.
        spec._initializing = True
        run = _Run(self, path)
        known = {"__file__": spec.origin, "__package__": spec.name, "__spec__": spec, "_run": run}
        vars(self).update(known, graph_break=_graph_break, disable=run.disable)

    def __getattr__(self, name):
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
    """Runs the code of the module, once. Another thread waits for it."""

    def __init__(self, module, path):
        self.module = module
        self.path = path
        self.lock = threading.RLock()
        self.begun = False
        self.functions = []

    def __call__(self):
        with self.lock:
            if self.begun:
                return
            self.begun = True
            before = dict(vars(self.module))
            try:
                self._execute(self.module)
            except BaseException:
                vars(self.module).clear()
                vars(self.module).update(before)
                self.begun = False
                raise
            for function, arguments, options in self.functions:
                # Where PyTorch keeps its answer.
                setattr(function, "__dynamo_disable", self.module.disable(function, *arguments, **options))

    def _execute(self, module):
        spec = imports.spec_of(NAME, self.path)
        spec._initializing = True
        known = {"__spec__": spec, "__loader__": spec.loader, "__path__": spec.submodule_search_locations}
        vars(module).update(known)
        spec.loader.exec_module(module)
        spec._initializing = False
        del vars(module)["_run"]
        module.__class__ = types.ModuleType

    def disable(self, function=None, *arguments, **options):
        """Answer PyTorch, which asks it for its own functions: nothing has to be disabled yet."""
        its_own = isinstance(function, types.FunctionType) and function.__module__.startswith("torch.")
        if its_own and len(arguments) == 1:
            self.functions.append((function, arguments, options))
            return function
        self()
        return self.module.disable(function, *arguments, **options)


def _graph_break(*arguments, **options):
    """Outside of compiled code it does nothing."""
