"""The build backend: maturin, with memfit's three device libraries built before it.

`pip install .` calls this. The libraries that go into a script's process (the virtual CUDA device, the same
device for NVML, and the watcher) are plain shared objects and no Python modules, so cargo makes them here and
they are put into the package as data, under the names that the loader looks for. Then maturin builds
`memfit._core` and the wheel.

libjpeg-turbo, which `memfit.data` decodes with, is built by cmake, which comes as a requirement of the build.
Where it cannot be built, the decoder in Rust serves, and `memfit doctor` says so.

What is wanted of the machine (a Python, cargo, a C compiler) is looked for before anything is fetched:
maturin itself is a requirement only once these are there, since it would fetch a whole Rust where there is
none.

`make dist` sets `MEMFIT_GLIBC`: then everything is linked by zig against that release of glibc, and JPEG is
decoded with SIMD or the build fails. `MEMFIT_TARGET` may then name another target than this machine's.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional  # noqa: UP035

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

MATURIN = "maturin==1.16.0"
# CPU architectures for which PyTorch has CUDA builds for Linux.
PROCESSORS = ("x86_64", "aarch64")

# An older Python than memfit wants reads this file, too, and must get as far as to be told so.
Settings = Optional[Dict[str, Any]]  # noqa: UP006, UP045


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    require_tools()
    return [MATURIN, *cmake()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    require_tools()
    return [MATURIN]


get_requires_for_build_editable = get_requires_for_build_wheel


def require_tools() -> None:
    """End with what is missing and the command that mends it, before anything is fetched or built."""
    told = missing_tool()
    if told:
        raise SystemExit(f"error: {told}")


def missing_tool() -> str | None:
    """Return what a build from source lacks on this machine, or nothing."""
    if sys.version_info < (3, 10):  # noqa: UP036
        here = platform.python_version()
        return f"memfit needs Python 3.10 or later, and `{sys.executable}` is {here}; `uv venv --python 3.12` makes an environment with another"
    command = cargo()
    if shutil.which(command) is None:
        return "building memfit from source takes Rust, and there is no `cargo`; install it with rustup (see rustup.rs), or a released wheel, which needs neither: `pip install memfit`"
    said = subprocess.run([command, "--version"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"cargo (\d+)\.(\d+)", said.stdout)
    if said.returncode or not found:
        return f"`{command} --version` fails: {said.stderr.strip() or said.stdout.strip()}"
    wanted = rust_version()
    if (int(found[1]), int(found[2])) < wanted:
        return f"memfit needs Rust {wanted[0]}.{wanted[1]} or later, and `{command}` is {found[1]}.{found[2]}; `rustup update stable` brings it"
    linker = os.environ.get(f"CARGO_TARGET_{target().upper().replace('-', '_')}_LINKER", "cc")
    if sys.platform == "linux" and shutil.which(linker) is None:
        return "building memfit from source takes a C compiler, and there is no `cc`; `apt install gcc libc6-dev` (Debian, Ubuntu) or `dnf install gcc` (Fedora) brings it, and a released wheel needs none: `pip install memfit`"
    return None


def rust_version() -> tuple[int, int]:
    """The Rust that the workspace asks for."""
    found = re.search(r'^rust-version = "(\d+)\.(\d+)', (ROOT / "Cargo.toml").read_text(), re.M)
    assert found
    return int(found[1]), int(found[2])


def cargo() -> str:
    return os.environ.get("CARGO", "cargo")


def glibc() -> str | None:
    """The release of glibc to link against with zig; nothing means the machine's own linker and glibc."""
    return os.environ.get("MEMFIT_GLIBC") or None


def target() -> str:
    """The target, as Rust names it."""
    return os.environ.get("MEMFIT_TARGET") or f"{platform.machine()}-unknown-linux-gnu"


def build_command() -> list[str]:
    """`cargo build`, with the linker and for the target of this build."""
    version = glibc()
    if version:
        return [cargo(), "zigbuild", "--release", "--locked", "--target", f"{target()}.{version}"]
    return [cargo(), "build", "--release", "--locked"]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    import maturin

    build_libraries()
    return with_best_jpeg(
        config_settings, lambda it: maturin.build_wheel(wheel_directory, it, metadata_directory)
    )


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    import maturin

    build_libraries()
    return with_best_jpeg(
        config_settings, lambda it: maturin.build_editable(wheel_directory, it, metadata_directory)
    )


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    import maturin

    return str(maturin.build_sdist(sdist_directory, config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    import maturin

    return str(maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    import maturin

    return str(maturin.prepare_metadata_for_build_editable(metadata_directory, config_settings))


def cmake() -> list[str]:
    """Return the build requirements for libjpeg-turbo: cmake, where it is not there and there are wheels
    of it.
    """
    return [] if shutil.which("cmake") or sys.platform != "linux" or not has_wheels() else ["cmake"]


def has_wheels() -> bool:
    return platform.machine() in PROCESSORS


def with_best_jpeg(config_settings: Settings, build: Callable[[Dict[str, Any]], str]) -> str:  # noqa: UP006
    """Build with libjpeg-turbo; without it where that fails and this is not a build to distribute."""
    settings = dict(config_settings or {})
    version = glibc()
    if version:
        tag = "manylinux_" + version.replace(".", "_")
        linked = ["--zig", "--target", target(), "--compatibility", tag, "--features", "turbo-simd"]
        return build(with_arguments(settings, linked))
    if shutil.which("cmake") is not None:
        # One build and no trial before it: the crates that it needs are compiled once.
        try:
            return build(with_arguments(settings, ["--features", "turbo"]))
        except SystemExit:
            pass
    print("memfit: libjpeg-turbo cannot be built here; JPEG is decoded in Rust, in full", file=sys.stderr)
    return build(settings)


def with_arguments(settings: dict[str, Any], further: list[str]) -> dict[str, Any]:
    """The settings, with further arguments for maturin."""
    name = "maturin.build-args" if "maturin.build-args" in settings else "build-args"
    given = settings.get(name, os.environ.get("MATURIN_PEP517_ARGS", ""))
    given = shlex.split(given) if isinstance(given, str) else list(given)
    return {**settings, name: [*given, *further]}


def build_libraries() -> None:
    """Have cargo build the device libraries, and put them into the package.

    Elsewhere than on Linux on these processors there is no CUDA build of PyTorch to run on them, and the rest
    of memfit does without.
    """
    shutil.rmtree(DEVICE, ignore_errors=True)
    if sys.platform != "linux" or target().split("-")[0] not in PROCESSORS:
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
    command = [*build_command(), "--lib", "--message-format=json-render-diagnostics"]
    for crate in crates:
        command += ["--package", crate]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode:
        raise SystemExit(finished.returncode)
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
