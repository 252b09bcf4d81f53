"""A dry run spares collections of garbage what importing PyTorch makes, and nothing of the script's."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import invoke
from support import on_device, through_memfit

pytest.importorskip("torch")

# A process that has run nothing but its own start has fewer objects.
MANY = 100_000


def test_what_importing_pytorch_makes_is_spared(tmp_path: Path) -> None:
    code = "import gc; x = torch.zeros(9, device=device); answer(spared=gc.get_freeze_count(), enabled=gc.isenabled())"
    answer = on_device(code, tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said["spared"] > MANY
    assert answer.said["enabled"] is True


CYCLE = """
import gc

class Holder:
    pass

{before}

def main():
    {within}
    holder.itself = holder
    holder.tensor = torch.zeros(1 << 20, device="cuda")
    del holder
    gc.collect()
    print("left:", torch.cuda.memory_allocated(), "spared:", gc.get_freeze_count(), gc.isenabled())

main()
"""


@pytest.mark.parametrize(
    ("before", "within", "is_spared"),
    [
        ("import torch", "holder = Holder()", True),
        # The holder is there when PyTorch is imported.
        ("", "holder = Holder(); import torch", False),
        ("gc.disable(); import torch; assert not gc.isenabled(); gc.enable()", "holder = Holder()", False),
    ],
    ids=["at the start", "in a function", "with the collector off"],
)
def test_memory_in_a_cycle_is_freed(before: str, within: str, is_spared: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CYCLE.format(before=before, within=within), encoding="utf-8")
    status, output, _ = through_memfit("t4", [sys.executable, str(script)], {}, ["--show-output"])
    assert status == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("left:")]
    left, spared, enabled = line.split()[1::2] + line.split()[-1:]
    assert left == "0"
    assert (int(spared) > MANY) is is_spared
    assert enabled == "True"


def test_a_process_that_ends_says_nothing_more() -> None:
    """Extension modules may report objects of theirs that are left over when a process ends."""
    code = "import torch, torch._dynamo; torch.zeros(9, device='cuda'); print('the end')"
    asked = ["run", "--quiet", "--show-output", "--gpu", "t4", "--format", "json"]
    run = invoke([*asked, "--", sys.executable, "-c", code])
    assert (run.status, run.stderr) == (0, "the end\n")


@pytest.mark.parametrize("setup", ['{"cards": []}', '{"cards": ["t4"]}', "{", None])
def test_on_a_real_gpu_and_within_functions_the_collector_stays_on(
    setup: str | None, probe: Callable[[str], Any], tmp_path: Path
) -> None:
    if setup is not None:
        (tmp_path / "setup.json").write_text(setup, encoding="utf-8")
    pause = probe("garbage")._Pause()
    frozen = gc.get_freeze_count()
    pause.begin()
    assert gc.isenabled(), "this is a function"
    pause.end()
    assert gc.get_freeze_count() == frozen


def test_it_is_on_again_where_the_import_fails(
    probe: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "imported_in_vain.py").write_text("raise OSError('a library is missing')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports, seen = probe("imports"), []
    imports.around("imported_in_vain", lambda: seen.append("begin"), lambda: seen.append("end"))
    for _ in range(2):
        with pytest.raises(OSError, match="a library is missing"):
            importlib.import_module("imported_in_vain")
    assert seen == ["begin", "end"] * 2
    (tmp_path / "imported_in_vain.py").write_text("value = 12345", encoding="utf-8")
    importlib.import_module("imported_in_vain")
    del sys.modules["imported_in_vain"]
    importlib.import_module("imported_in_vain")
    assert seen == ["begin", "end"] * 3, "once it has run, nothing surrounds it"
    sys.meta_path.remove(imports._finder)
    del sys.modules["imported_in_vain"]
