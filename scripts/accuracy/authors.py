"""Run a published script unmodified, and report what its author would have read from the allocator.

    python authors.py [--on-device] [--without MODULE…] [--before MODULE] [--call EXPRESSION…]
                      SCRIPT [ARGUMENT…]

The working folder is a checkout of the author's repository; SCRIPT is a file in it, or a module's dotted
name. With `--call` the script is imported, and the expressions are evaluated among its names: functions
that a hosted service would call. `--without` replaces a module that draws or reaches a service with one that
does nothing; `--before` imports a module of this folder that replaces downloads. `--on-device` makes weights
on the GPU, where the author moves them there: the host could not hold them.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import importlib.metadata
import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from measured import peak_of, report

INSTALLED = importlib.metadata.version


def on_dump(name: str) -> None:
    """Report a snapshot's peaks under its file's stem, as they are computed from a published one."""
    snapshot = torch.cuda.memory._snapshot()
    for metric, value in peak_of(snapshot).items():
        report(**{f"{Path(name).stem}.{metric}": value})


def at_end() -> None:
    report(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())


def version_of(name: str) -> str:
    """Return a distribution's version; "0" for the checkout's own packages, which are not installed."""
    try:
        return INSTALLED(name)
    except importlib.metadata.PackageNotFoundError:
        return "0"


def imported(script: str) -> ModuleType:
    """Import a script under a name of its own."""
    if not script.endswith(".py"):
        return importlib.import_module(script)
    spec = importlib.util.spec_from_file_location("published_script", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published_script"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--on-device", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--before")
    parser.add_argument("--call", action="append", default=[])
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    here = Path.cwd()
    # Folders in which such repositories keep their packages.
    folders = [here, here / "cs336-basics", (here / args.script).parent]
    sys.path[1:1] = [str(folder) for folder in folders if folder.is_dir()]
    for name in args.without:
        sys.modules[name] = MagicMock(name=name)
    importlib.metadata.version = version_of
    torch.cuda.memory._dump_snapshot = lambda filename="dump_snapshot.pickle", *_: on_dump(str(filename))
    atexit.register(at_end)
    if args.on_device:
        torch.set_default_device("cuda")
    if args.before:
        importlib.import_module(args.before)
    sys.argv = [args.script, *args.arguments]
    if args.call:
        names: dict[str, Any] = vars(imported(args.script))
        for expression in args.call:
            eval(compile(expression, "<call>", "exec"), names)
    elif args.script.endswith(".py"):
        runpy.run_path(args.script, run_name="__main__")
    else:
        runpy.run_module(args.script, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
