"""The package as `pip install .` leaves it: everything is in it, and nothing of it imports torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import memfit
import pytest
from memfit import _core

PACKAGE = Path(memfit.__file__).parent
COMMAND = Path(sysconfig.get_path("scripts")) / "memfit"


def command(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(COMMAND), *arguments], capture_output=True, text=True, check=False, **settings)


def imported_by(code: str) -> set[str]:
    """The modules that an interpreter has imported once it has run the code."""
    program = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_versions_agree() -> None:
    installed = importlib.metadata.version("memfit")
    assert memfit.__version__ == _core.__version__ == installed
    assert command("--version").stdout == f"memfit {installed}\n"


def test_importing_it_imports_neither_torch_nor_anything_slow() -> None:
    modules = imported_by("import memfit, memfit._cli")
    assert "memfit._core" in modules
    slow = {"torch", "numpy", "asyncio", "subprocess", "importlib.metadata", "typing", "inspect"}
    assert not modules & slow


@pytest.mark.parametrize("module", ["memfit._api.verbs", "memfit._notebook.magics"])
def test_asking_from_python_or_a_notebook_imports_no_torch(module: str) -> None:
    assert "torch" not in imported_by(f"import {module}")


@pytest.mark.parametrize("arguments", [["--version"], ["gpus"], ["doctor"]])
def test_a_verb_that_runs_no_script_imports_no_torch(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['memfit', *{arguments}]; import memfit._cli; memfit._cli.main()"
    assert "torch" not in imported_by(code)


def test_python_can_run_it_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memfit", "gpus"], capture_output=True, text=True, check=True
    )
    assert done.stdout == command("gpus").stdout


@pytest.mark.parametrize(
    ("name", "soname"),
    [
        ("libcuda.so.1", "libcuda.so.1"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.1"),
        ("libmemfit_watch.so", None),
    ],
)
def test_the_device_libraries_are_there_under_the_names_that_loaders_look_for(
    name: str, soname: str | None
) -> None:
    library = PACKAGE / "_device" / name
    assert library.read_bytes()[:4] == b"\x7fELF"
    if soname is not None:
        # Another library that wants it is satisfied with one that is loaded already only if it says this
        # name.
        assert soname.encode() in library.read_bytes()


def test_no_one_elses_driver_is_found_because_memfit_is_installed() -> None:
    """The virtual device stands in no folder that a loader searches: it is there for those who are led to
    it.
    """
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libmemfit_watch.so')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "OSError" in done.stderr


def test_the_doctor_finds_the_installed_libraries() -> None:
    report = json.loads(command("doctor", "--format", "json").stdout)
    health = {check["name"]: (check["health"], check["found"]) for check in report["checks"]}
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libmemfit_watch.so"]:
        assert health[name] == ("good", str(PACKAGE / "_device" / name))
    assert health["torch"][0] == "good"
    assert report["ready"] is True


def test_python_means_the_interpreter_that_memfit_is_installed_beside(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "CONDA_PREFIX"}
    }
    script = tmp_path / "which.py"
    script.write_text("import pathlib, sys\npathlib.Path('which').write_text(sys.executable)\n")
    command("run", "--gpu", "t4", "--", "python", str(script), cwd=tmp_path, env=environment)
    assert Path((tmp_path / "which").read_text()).parent == Path(sys.executable).parent


def test_arguments_that_are_not_unicode_arrive_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "args.py"
    script.write_text("import os, pathlib, sys\npathlib.Path('args').write_bytes(os.fsencode(sys.argv[1]))\n")
    arguments = [os.fsencode(str(COMMAND)), b"run", b"--gpu", b"t4", b"--", b"python", b"args.py", b"caf\xe9"]
    subprocess.run(arguments, cwd=tmp_path, capture_output=True, check=False)
    assert (tmp_path / "args").read_bytes() == b"caf\xe9"


def test_an_interrupt_ends_the_run_and_not_the_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import pathlib, signal\npathlib.Path('up').touch()\nsignal.pause()\n")
    arguments = [str(COMMAND), "run", "--gpu", "t4", "--format", "json", "--", "python", str(script)]
    run = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "up").exists():
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    output, errors = run.communicate()
    assert run.returncode == 2, errors
    assert json.loads(output)["problem"]["kind"] == "interrupted"
    assert "Traceback" not in errors


def test_a_hangup_does_not_end_a_run_that_ignores_it(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import pathlib, time, torch\ntorch.zeros(1, device='cuda')\npathlib.Path('up').touch()\n"
        "while not pathlib.Path('on').exists():\n    time.sleep(0.02)\n"
    )
    arguments = ["nohup", str(COMMAND), "run", "--gpu", "t4", "--format", "json", "--", "python", str(script)]
    run = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "up").exists():
        assert run.poll() is None
    run.send_signal(signal.SIGHUP)
    (tmp_path / "on").touch()
    output, errors = run.communicate()
    assert run.returncode == 0, errors
    assert json.loads(output)["verdict"] == "fits"


def test_a_real_card_is_read_through_nvidias_own_library(tmp_path: Path) -> None:
    """The virtual device's NVML stands in for the driver's: the doctor reads a card's name and memory from
    it.
    """
    kept = command("run", "--gpu", "t4", "--keep", "--", "true", env={**os.environ, "TMPDIR": str(tmp_path)})
    folder = Path(re.search(r"the run's files are in `(.+)`", kept.stderr)[1])
    environment = {**os.environ, "MEMFIT_RUN_DIR": str(folder), "LD_LIBRARY_PATH": str(folder / "lib")}
    checks = json.loads(command("doctor", "--format", "json", env=environment).stdout)["checks"]
    (gpu,) = (check for check in checks if check["name"] == "real GPU")
    assert gpu["health"] == "good"
    assert gpu["found"].startswith("Tesla T4, ")


def test_a_missing_real_gpu_is_reported() -> None:
    done = command("run", "--gpu", "local", "--", "true")
    if done.returncode == 2:
        assert "no NVIDIA GPU with a working driver was found" in done.stderr
        assert "hint:" in done.stderr
