"""The levers that Python applies are those that the Rust declarations say a plan applies, and a new one needs
one file on each side.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memfit import _core, _levers
from runs import ROOT
from torch import nn

SAMPLE = ROOT / "tests" / "python" / "sample" / "sample_lever.py"
DECLARED = ROOT / "crates" / "memfit-vocabulary" / "sample" / "sample_lever.rs"


def test_python_applies_what_is_declared_and_nothing_else() -> None:
    declared = {name: stage for name, stage in _core.lever_stages().items() if stage != "by-hand"}
    assert {lever.name: lever.stage.name.lower() for lever in _levers.levers()} == declared


@pytest.mark.parametrize(
    ("torch", "name"),
    [
        ("2.8.0+cu128", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.9.0", "PYTORCH_ALLOC_CONF"),
        ("2.15.0a0", "PYTORCH_ALLOC_CONF"),
    ],
)
def test_the_allocators_variable_is_one_that_the_release_reads(torch: str, name: str) -> None:
    from memfit._levers import allocator

    assert allocator._name(torch) == name


def test_every_lever_has_a_place_of_its_own() -> None:
    levers = _levers.levers()
    assert [lever.name for lever in levers] != []
    assert len({(lever.stage, lever.place) for lever in levers}) == len(levers)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the levers, to which a test may add some."""
    copy = tmp_path / "sampled_levers"
    shutil.copytree(ROOT / "python" / "memfit" / "_levers", copy)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield copy
    for name in [name for name in sys.modules if name.split(".")[0] == copy.name]:
        del sys.modules[name]


def sampled(folder: Path) -> Any:
    return importlib.import_module(folder.name)


def test_a_file_is_all_that_a_lever_needs(folder: Path) -> None:
    shutil.copy(SAMPLE, folder)
    levers = sampled(folder)
    declared = re.search(r'Declaration::new\("([^"]+)", Stage::(\w+)', DECLARED.read_text())
    assert declared is not None
    name, stage = declared.groups()
    assert {lever.name for lever in levers.levers()} == {lever.name for lever in _levers.levers()} | {name}
    assert levers.known(name).stage.name == stage.upper()
    target = levers.Target(nn.Linear(2, 2))
    assert [each for each, _ in levers.ordered([("tf32", True), (name, 7), ("sdpa", True)])] == [
        "sdpa",
        name,
        "tf32",
    ]
    applied = levers.apply(target, [(name, 7)])
    assert (applied.names, target.notes) == ([name], ["7 tensors are forgotten"])
    applied.undo()
    assert target.notes == []


def test_a_lever_that_this_pytorch_cannot_apply_is_refused_alone(folder: Path) -> None:
    (folder / "later_release.py").write_text(
        "from torch import of_a_later_release\n\nfrom .registry import Stage, lever\n\n\n"
        '@lever("later", Stage.MODEL, 1)\ndef apply(target, value, name):\n    return of_a_later_release\n'
    )
    levers = sampled(folder)
    assert levers.known("sdpa").name == "sdpa"
    with pytest.raises(levers.CannotApply, match="this PyTorch version lacks"):
        levers.apply(levers.Target(nn.Linear(2, 2)), [("later", True)])
