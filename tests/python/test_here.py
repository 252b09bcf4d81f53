"""If memfit cannot work or something is missing, `memfit run` and `memfit doctor` say so in one line,
with what mends it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import memfit


def interpreter(folder: Path, version: str, musl: bool = False, torch: str | None = None) -> Path:
    """A stand-in for an interpreter, which answers as one of that kind does."""
    library = None
    if torch is not None:
        library = folder / "site-packages/torch"
        library.mkdir(parents=True)
        (library / "version.py").write_text(torch)
    program = folder / "bin/python"
    program.parent.mkdir(parents=True, exist_ok=True)
    answer = {"executable": str(program), "version": version, "musl": musl, "torch": library and str(library)}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    return program


def run(python: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [memfit(), "run", "--gpu", "t4", "--", str(python), "-c", "pass"]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def doctor(**environment: str) -> dict[str, dict[str, Any]]:
    command = [memfit(), "doctor", "--format", "json"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ({"version": "3.9.18"}, "is Python 3.9.18", "uv venv --python"),
        ({"version": "3.12.1", "musl": True}, "is linked with musl", "glibc"),
        ({"version": "3.12.1"}, "PyTorch is not installed for", "-m pip install torch"),
        (
            {"version": "3.12.1", "torch": "__version__ = '2.15.0+cpu'\ncuda = None\n"},
            "built without CUDA",
            "--force-reinstall torch==2.15.0",
        ),
        (
            {"version": "3.12.1", "torch": "__version__ = '1.13.1+cu117'\ncuda = '11.7'\n"},
            "PyTorch 1.13.1+cu117 for CUDA 11.7",
            "--upgrade torch",
        ),
    ],
    ids=["python too old", "musl", "no torch", "torch for the CPU", "torch too old"],
)
def test_an_unsuitable_interpreter_is_refused_with_one_line(
    tmp_path: Path, given: dict[str, Any], said: str, remedy: str
) -> None:
    python = interpreter(tmp_path, **given)
    done = run(python)
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert remedy in " ".join(rest)
    found = doctor(VIRTUAL_ENV=str(tmp_path))
    broken = [
        check for name in ("python", "torch") if (check := found.get(name)) and check["health"] == "broken"
    ]
    assert len(broken) == 1
    assert said in broken[0]["found"]
    assert remedy in broken[0]["hint"]


def test_an_untested_torch_release_causes_a_note_and_no_refusal(tmp_path: Path) -> None:
    interpreter(tmp_path, "3.12.1", torch="__version__ = '2.99.0+cu140'\ncuda = '14.0'\n")
    check = doctor(VIRTUAL_ENV=str(tmp_path))["torch"]
    assert check["health"] == "absent"
    assert "newer than the releases" in check["hint"]


def test_without_a_folder_for_temporary_files_the_remedy_is_named() -> None:
    # Nobody can make a folder there, not even root.
    done = run(Path(sys.executable), TMPDIR="/proc")
    assert done.returncode == 2
    assert "TMPDIR=" in done.stderr
    check = doctor(TMPDIR="/proc")["temporary files"]
    assert check["health"] == "broken"
    assert "TMPDIR=" in check["hint"]
    # The message contains the reason.
    assert ":" in check["found"]


def test_without_a_home_everything_but_calibrations_works() -> None:
    check = doctor(HOME="/proc/nowhere", XDG_CONFIG_HOME="")["calibration folder"]
    assert check["health"] == "absent"
    assert "XDG_CONFIG_HOME" in check["hint"]


def test_a_preloaded_library_is_reported() -> None:
    assert "LD_PRELOAD" not in doctor(LD_PRELOAD="")
    missing = doctor(LD_PRELOAD="/nowhere/lib.so")["LD_PRELOAD"]
    assert missing["health"] == "absent"
    assert "unset LD_PRELOAD" in missing["hint"]


def test_missing_shared_memory_is_reported() -> None:
    def inside(change: str) -> dict[str, Any]:
        script = f"{change} && exec {memfit()} doctor --format json"
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout:
            pytest.skip("no namespaces can be made here")
        checks = json.loads(done.stdout)["checks"]
        return next(check for check in checks if check["name"] == "shared memory")

    assert "--shm-size" in inside("mount -t tmpfs -o size=1M tmpfs /dev/shm")["hint"]
    assert inside("mount -t tmpfs -o size=1G tmpfs /dev/shm")["health"] == "good"
