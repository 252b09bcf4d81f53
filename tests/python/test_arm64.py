"""`make arm64`: missing tools are reported with advice, and a second call continues where the first ended."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import ROOT

FOLDERS = (ROOT / "scripts", ROOT / "scripts/arm", ROOT / "scripts/dist")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the script."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for name in [name for name in sys.modules if any((each / f"{name}.py").exists() for each in FOLDERS)]:
        del sys.modules[name]


@pytest.fixture
def complete(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module on a machine that has all it takes."""
    emulated = script("emulated")
    (tmp_path / "register").touch()
    (tmp_path / "qemu-aarch64").write_text("enabled\nflags: PF\n")
    monkeypatch.setattr(emulated, "BINFMT", tmp_path)
    monkeypatch.setattr(emulated, "UV", tmp_path / "register")
    monkeypatch.setattr(emulated, "rust_library", lambda: tmp_path)
    monkeypatch.setattr(emulated.platform, "system", lambda: "Linux")
    monkeypatch.setattr(emulated.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(emulated.os, "geteuid", lambda: 0)
    monkeypatch.setattr(emulated.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(emulated.shutil, "disk_usage", lambda _: SimpleNamespace(free=emulated.ROOM))
    return emulated


def test_a_machine_that_has_all_of_it_may_begin(complete: Any, tmp_path: Path) -> None:
    assert complete.obstacle(tmp_path / "new" / "folder") is None


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("arm", "`make test`"),
        ("root", "`sudo make arm64`"),
        ("qemu-aarch64-static", "`apt-get install qemu-user-static`"),
        ("debootstrap", "`apt-get install debootstrap`"),
        ("cargo-zigbuild", "`make arm64`"),
        ("library", "`rustup target add aarch64-unknown-linux-gnu`"),
        ("disk", "ARM64=FOLDER"),
        ("flag", "`echo -1 > "),
        ("binfmt", "privileged container"),
    ],
)
def test_missing_tools_are_one_sentence_with_a_remedy(
    complete: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str, remedy: str
) -> None:
    if missing == "arm":
        monkeypatch.setattr(complete.platform, "machine", lambda: "aarch64")
    elif missing == "root":
        monkeypatch.setattr(complete.os, "geteuid", lambda: 1000)
    elif missing == "library":
        monkeypatch.setattr(complete, "rust_library", lambda: tmp_path / "none")
    elif missing == "disk":
        monkeypatch.setattr(complete.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    elif missing == "flag":
        (tmp_path / "qemu-aarch64").write_text("enabled\nflags: P\n")
    elif missing == "binfmt":
        (tmp_path / "register").unlink()
        (tmp_path / "register").mkdir()
        (tmp_path / "qemu-aarch64").unlink()
        monkeypatch.setattr(complete, "UV", tmp_path)
    else:
        have = complete.shutil.which
        monkeypatch.setattr(complete.shutil, "which", lambda tool: None if tool == missing else have(tool))
    said = complete.obstacle(tmp_path)
    assert remedy in said
    assert "\n" not in said


def test_releases_for_arm_are_those_of_the_tests(script: Any) -> None:
    pinned = script("emulated").pinned()
    assert any(line.startswith("torch==") for line in pinned)
    assert any(line.startswith("nvidia-cudnn") for line in pinned), (
        "the CUDA libraries that torch is linked with"
    )
    assert not any(line.startswith("triton") for line in pinned)


def test_results_are_kept_for_the_same_wheel_and_beside_those_of_another_call(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arm64 = script("arm64")
    monkeypatch.setattr(arm64, "TABLE", tmp_path / "arm64.md")
    monkeypatch.setattr(arm64.emulated, "version", lambda: "qemu 7.2")
    path = tmp_path / "results.json"
    tests = {"commit": "abc", "seconds": 1, "passed": 3, "failed": {"it_fails": "why"}, "ignored": 1}
    one, other = arm64.Results(path), arm64.Results(path)
    one.results_of("rust", "")["memfit-channel"] = tests
    peak = {"allocated": 1, "reserved": 2, "device": 3}
    here = {"verdict": "fits", "message": None, "peak": peak, "pinned": 0, "torch": "2.15.0", "seconds": 9}
    there = here | {"peak": peak | {"device": 4}}
    case = arm64.CASES[0]
    other.results_of("peaks", "wheel")[str(case)] = {"here": here, "there": there}
    one.save()
    other.save()
    kept = json.loads(path.read_text())
    assert set(kept) == {"rust", "peaks"}
    page = (tmp_path / "arm64.md").read_text()
    assert f"| {case} | fits | 1 | 2 | **3; ARM: 4** | 0 | 9 s |" in page
    assert "0 of 1 have the same" in page
    assert "3 passed, 1 failed" in page
    assert "`it_fails` of memfit-channel failed" in page
    assert arm64.Results(path).results_of("peaks", "wheel") != {}
    assert arm64.Results(path).results_of("peaks", "another wheel") == {}


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
def test_each_test_of_a_program_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    import subprocess

    program = tmp_path / "tests"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --list ]; then echo "a::passes: test"; echo "b::fails: test"; echo "c::child: test"; exit; fi\n'
        'case "$2" in\n'
        "a::passes) echo '1 passed; 0 failed; 0 ignored' ;;\n"
        "c::child) echo '0 passed; 0 failed; 1 ignored' ;;\n"
        "*) exit 101 ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    script = ROOT / "scripts/arm/each_test.sh"
    done = subprocess.run(
        ["sh", str(script), str(program), "20"],
        env={"PATH": "/usr/bin:/bin", "KEPT": str(tmp_path / "kept")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(done.stdout.split("\n")) == ["", "failed b::fails", "ignored c::child", "passed a::passes"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["b.fails"]
    crashed = tmp_path / "crashes"
    crashed.write_text("#!/bin/sh\nexit 139\n")
    crashed.chmod(0o755)
    assert subprocess.run(["sh", str(script), str(crashed), "20"], capture_output=True).returncode == 139
