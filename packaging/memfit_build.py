"""The build backend: maturin, with memfit's three device libraries built before it.

`pip install .` calls this. The libraries that go into a script's process (the virtual CUDA device, the same
device for NVML, and the watcher) are plain shared objects and no Python modules, so cargo makes them here and
they are put into the package as data, under the names that the loader looks for. Then maturin builds
`memfit._core` and the wheel.

libjpeg-turbo, which `memfit.data` decodes with, is built by cmake, which comes as a requirement of the build.
Where it cannot be built, the decoder in Rust serves, and `memfit doctor` says so.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import maturin
from maturin import get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
DEVICE = ROOT / "python" / "memfit" / "_device"

# By crate: the name that the library has in the package.
LIBRARIES = {
    "memfit-vgpu": "libcuda.so.1",
    "memfit-nvml": "libnvidia-ml.so.1",
    "memfit-watch": "libmemfit_watch.so",
}

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*maturin.get_requires_for_build_wheel(config_settings), *cmake()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*maturin.get_requires_for_build_editable(config_settings), *cmake()]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    build_libraries()
    return str(maturin.build_wheel(wheel_directory, with_features(config_settings), metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    build_libraries()
    return str(maturin.build_editable(wheel_directory, with_features(config_settings), metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    return str(maturin.build_sdist(sdist_directory, config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    return str(maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    return str(maturin.prepare_metadata_for_build_editable(metadata_directory, config_settings))


def cmake() -> list[str]:
    """What the build has to bring along for libjpeg-turbo: cmake, where it is not there and there are wheels
    of it.
    """
    return [] if shutil.which("cmake") or sys.platform != "linux" or not has_wheels() else ["cmake"]


def has_wheels() -> bool:
    return platform.machine() in ("x86_64", "aarch64")


def with_features(config_settings: Settings) -> dict[str, Any]:
    """The settings, with libjpeg-turbo if it can be built."""
    settings = dict(config_settings or {})
    if not builds_turbo():
        print("memfit: libjpeg-turbo cannot be built here; JPEG is decoded in Rust, in full", file=sys.stderr)
        return settings
    name = "maturin.build-args" if "maturin.build-args" in settings else "build-args"
    given = settings.get(name, os.environ.get("MATURIN_PEP517_ARGS", ""))
    given = shlex.split(given) if isinstance(given, str) else list(given)
    settings[name] = [*given, "--features", "turbo"]
    return settings


def builds_turbo() -> bool:
    """Whether libjpeg-turbo could be built, as it then is."""
    if shutil.which("cmake") is None:
        return False
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--release", "--locked", "--package", "memfit-loader", "--features", "turbo"]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def build_libraries() -> None:
    """Have cargo build the device libraries, and put them into the package.

    Elsewhere than on Linux there is no CUDA build of PyTorch to run on them, and the rest of memfit does
    without.
    """
    shutil.rmtree(DEVICE, ignore_errors=True)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    built = cargo_build(list(LIBRARIES))
    DEVICE.mkdir(parents=True)
    for crate, name in LIBRARIES.items():
        # A copy and not a link: a running script has the old file mapped, and the next build must not change
        # it.
        partial = DEVICE / f".{name}.partial"
        shutil.copyfile(built[crate], partial)
        partial.chmod(0o755)
        os.replace(partial, DEVICE / name)


def cargo_build(crates: list[str]) -> dict[str, Path]:
    """Build the crates' shared libraries; the files by crate, as cargo itself names them."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--release", "--locked", "--lib", "--message-format=json-render-diagnostics"]
    for crate in crates:
        command += ["--package", crate]
    try:
        finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    except FileNotFoundError:
        raise SystemExit("memfit is built from source with Rust: install cargo (see rustup.rs)") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from None
    built: dict[str, Path] = {}
    for line in finished.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or "cdylib" not in message["target"]["kind"]:
            continue
        for crate in crates:
            if message["target"]["name"] == crate.replace("-", "_"):
                built[crate] = next(Path(name) for name in message["filenames"] if name.endswith(".so"))
    missing = sorted(set(crates) - set(built))
    if missing:
        raise SystemExit(f"cargo built no shared library for {', '.join(missing)}")
    return built
