"""Fixtures shared by several test files."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import ROOT

# The tests interrupt programs that they start. A process that was started in the background may ignore the
# signal, and so would those.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Several tests run at once, each with processes of its own: threads of PyTorch's that wait for each other
# cost a seventh of all tests' processor time. Set before anything imports PyTorch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_modules = 0


@pytest.fixture(autouse=True)
def _imported_objects_are_left_alone() -> None:
    """Keep objects of imported modules out of collections of garbage.

    `memfit.Step` collects garbage wherever memory ran out. With PyTorch's compiler imported, each time takes
    a fifth of a second, which was a fifth of the time of all tests.
    """
    global _modules
    if len(sys.modules) != _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


def pytest_collection_finish() -> None:
    """Refuse a folder of `scripts/` that a test left on the path: other tests would import its modules."""
    left = [path for path in sys.path if Path(path).is_relative_to(ROOT / "scripts")]
    if left:
        raise pytest.UsageError(
            f"import scripts with script_modules.load_scripts: {', '.join(left)} is on the path"
        )


def pytest_sessionfinish() -> None:
    """Let modules clean up: a library of PyTorch's reports what is left of it at the end."""
    gc.unfreeze()


@pytest.fixture
def probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the probe, as a process of a run would."""
    package, beside = ROOT / "python" / "memfit", tmp_path_factory.mktemp("beside-the-probe")
    (beside / "memfit_levers").symlink_to(package / "_levers")
    for folder in (package / "_probe", beside):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("MEMFIT_RUN_DIR", str(tmp_path))
    yield lambda name: importlib.import_module(f"memfit_probe.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "memfit_probe"]:
        del sys.modules[name]
