"""Imports modules of `scripts/`, whose names are only unique within their folder."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from runs import ROOT


def load_script(path: str) -> ModuleType:
    """Import one script, by its path from the project's root."""
    folder, _, name = path.rpartition("/")
    (module,) = load_scripts(folder, name.removesuffix(".py"))
    return module


def load_scripts(folder: str, *names: str) -> list[ModuleType]:
    """Import modules of one folder together, and leave neither the folder nor their names behind.

    A folder that stays on the path answers the imports of every test that the same process collects later.
    """
    home = ROOT / folder
    own = {path.stem for path in home.glob("*.py")}
    hidden = {name: sys.modules.pop(name) for name in own & set(sys.modules)}
    before = list(sys.path)
    sys.path.insert(0, str(home))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path[:] = before
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(hidden)
