"""A Debian for ARM in a folder of this machine, and programs that run in it under emulation.

`scripts/arm64.py` uses it; `python scripts/arm/emulated.py FOLDER` says what this machine lacks. Everything
is kept in one folder: `root` (the system), `site` (PyTorch's packages for ARM), and a stamp next to each that
marks it as complete.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "scripts/dist"))

import matrix  # noqa: E402

UV = HERE / ".venv/bin/uv"
TARGET = "aarch64-unknown-linux-gnu"
EMULATOR = "qemu-aarch64-static"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# ELF, 64 bits, little-endian, executable or shared, AArch64; `F` opens the emulator before the chroot.
FORMAT = (
    rb":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    rb":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    rb":/usr/bin/qemu-aarch64-static:FP"
)
# Tests whose names begin so are left out: they measure the memory of many processes, which under emulation is
# mostly that of the emulator, gigabytes for each.
LEFT_OUT = "load::"
SUITE = "bookworm"
PYTHON = "3.11"
# Bytes of the system, of the packages with their downloads, and of two builds.
ROOM = 24 << 30
# Packages needed to import torch, in addition to the CUDA libraries that it is linked with.
PACKAGES = (
    *("torch", "torchvision", "numpy", "pillow", "sympy", "mpmath", "networkx", "jinja2", "markupsafe"),
    *("filelock", "fsspec", "typing-extensions"),
)


def require(folder: Path) -> None:
    """Exit with a sentence that names what is missing and the command that installs it."""
    problem = obstacle(folder)
    if problem:
        sys.exit(problem)


def obstacle(folder: Path) -> str | None:
    """Return the obstacle, or nothing."""
    for missing, remedy in (
        (shutil.which("cargo-zigbuild") is None, "cargo-zigbuild"),
        (not UV.exists(), UV),
    ):
        if missing:
            return f"there is no {remedy}: call `make arm64`, which brings it"
    return of_machine(folder)


def of_machine(folder: Path) -> str | None:
    """Return the programs that this machine lacks and pip cannot install."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"this emulates ARM on Linux on x86-64, and this is {platform.system()} on {platform.machine()}: `make test` runs everything natively on an ARM machine"
    if os.geteuid() != 0:
        return "the emulated system is a chroot, which takes root: `sudo make arm64`"
    packages = {EMULATOR: "qemu-user-static", "debootstrap": "debootstrap", "unshare": "util-linux"}
    missing = [package for tool, package in packages.items() if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here: `apt-get install {' '.join(missing)}`"
    if shutil.which("cargo") is None:
        return "there is no `cargo` here: rustup installs it (rustup.rs)"
    if not rust_library().is_dir():
        return f"Rust has no standard library for ARM here: `rustup target add {TARGET}`"
    if not (folder / "site.torch").exists():
        kept = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(kept).free
        if free < ROOM:
            return f"{kept} has {free >> 30} GiB left, and this takes {ROOM >> 30}: `make arm64 ARM64=FOLDER` takes another place"
    return register_emulator()


def rust_library() -> Path:
    asked = ["rustc", "--print", "target-libdir", "--target", TARGET]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "none")


def register_emulator() -> str | None:
    """Have the kernel start ARM's programs with the emulator, in chroots too; gives what is in the way."""
    remedy = f"run this in a virtual machine or a privileged container, or register {EMULATOR} in the host's binfmt_misc with the flag F"
    if not (BINFMT / "register").exists():
        mounted = subprocess.run(
            ["mount", "-t", "binfmt_misc", "none", str(BINFMT)], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            return f"the kernel does not let binfmt_misc be mounted here: {remedy}"
    registered = BINFMT / "qemu-aarch64"
    if not registered.exists():
        try:
            (BINFMT / "register").write_bytes(FORMAT)
        except OSError as error:
            return f"the kernel does not take an emulator for ARM ({error.strerror}): {remedy}"
    flags = re.search(r"^flags: (\w*)$", registered.read_text(), re.M)
    if not flags or "F" not in flags[1]:
        return f"{registered} lacks the flag F, without which no chroot sees the emulator: `echo -1 > {registered}`, and call this again"
    return None


def version() -> str:
    """Return the emulator and its release."""
    said = subprocess.run([EMULATOR, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version ([\d.]+)", said)
    return f"qemu {found[1] if found else '(unknown release)'} (user mode)"


def make(folder: Path) -> matrix.System:
    """Return the system with PyTorch's packages; create it if it does not exist."""
    root = folder / "root"
    make_root(root)
    install_torch(folder / "site")
    return matrix.System(SUITE, root, seen={"site": folder / "site"})


def make_root(root: Path) -> None:
    """A Debian for ARM with Python in it."""
    done = root.with_suffix(".done")
    if done.exists():
        return
    shutil.rmtree(root, ignore_errors=True)
    print("making a Debian for ARM, which takes ten minutes", flush=True)
    try:
        mirror = [matrix.mirror()]
    except (StopIteration, OSError, subprocess.CalledProcessError):
        # debootstrap knows one itself.
        mirror = []
    options = ["--arch=arm64", "--variant=minbase", "--include=python3,libgomp1,git"]
    if subprocess.run(["debootstrap", *options, SUITE, str(root), *mirror], check=False).returncode:
        sys.exit(
            f"debootstrap makes no {SUITE} for ARM out of {mirror[0] if mirror else 'its own mirror'}: {root}/debootstrap/debootstrap.log says why (a mirror that cannot be reached, or no debian-archive-keyring: `apt-get install debian-archive-keyring`)"
        )
    # Left mounted by debootstrap.
    subprocess.run(["umount", "-q", str(root / "proc")], check=False)
    done.touch()


def pinned() -> list[str]:
    """The releases of the tests' requirements, for this Python."""
    found = {}
    for line in (HERE / "requirements/test.txt").read_text().splitlines():
        requirement, _, marker = line.partition("#")[0].strip().partition(" ; ")
        name, equal, release = requirement.partition("==")
        if equal and (name in PACKAGES or name.startswith("nvidia-")) and applies(marker):
            found[name] = release
    missing = set(PACKAGES) - set(found)
    assert not missing, missing
    return [f"{name}=={release}" for name, release in found.items()]


def applies(marker: str) -> bool:
    from packaging.markers import Marker

    surroundings = {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.2",
        "platform_machine": "aarch64",
    }
    return not marker or Marker(marker).evaluate(surroundings)


def install(site: Path, *requirements: str | Path, again: str | None = None) -> None:
    """Unpack wheels for ARM into a folder; nothing of them runs. `again` names a package to replace."""
    command = [UV, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-platform", "aarch64-manylinux_2_36", "--python-version", PYTHON, "--target", site]
    command += ["--reinstall-package", again] if again else []
    if subprocess.run([str(word) for word in (*command, *requirements)], check=False).returncode:
        sys.exit(f"uv did not install {', '.join(map(str, requirements))}: its message is above")


def install_torch(site: Path) -> None:
    done, wanted = site.with_suffix(".torch"), pinned()
    if done.exists() and done.read_text().split() == wanted:
        return
    print("installing PyTorch for ARM: 2 GB to fetch, unless uv has them", flush=True)
    install(site, *wanted)
    done.write_text("\n".join(wanted))


# --- Test programs ------------------------------------------------------------------------------------------


def build_tests(target: Path, crate: str, glibc: str) -> list[tuple[str, str]] | str:
    """Build a crate's tests: its programs with their package's folder, or why there are none."""
    command = ["cargo-zigbuild", "test", "--package", crate, "--locked", "--lib", "--bins", "--tests"]
    command += ["--target", f"{TARGET}.{glibc}", "--no-run", "--message-format", "json-render-diagnostics"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target), "CARGO_INCREMENTAL": "0"}
    built = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        return f"its tests were not built: {built.stderr[-1500:]}"
    return sorted(programs(built.stdout))


def give_compiler(system: matrix.System) -> None:
    """Give the system zig's C compiler, which is this machine's program there, too."""
    import ziglang

    system.seen["zig"] = Path(ziglang.__file__).parent
    command = system.folder / "usr/bin/cc"
    command.write_text('#!/bin/sh\nexec /zig/zig cc -target aarch64-linux-gnu "$@"\n')
    command.chmod(0o755)


def run_tests(system: matrix.System, programs: list[tuple[str, str]], seconds: int) -> dict[str, Any]:
    """Run each test in a process of its own, as nextest does, for at most `seconds`."""
    found: dict[str, Any] = {"passed": 0, "ignored": 0, "failed": {}}
    for folder, program in programs:
        surroundings = [f"CARGO_MANIFEST_DIR={folder}", f"INSTA_WORKSPACE_ROOT={HERE}", "INSTA_UPDATE=no"]
        # Emulated, a property's many cases take minutes.
        surroundings += ["PROPTEST_RNG_SEED=2026", "PROPTEST_CASES=16"]
        surroundings += ["PYTHONPATH=/site", "MEMFIT_TEST_SITE_PACKAGES=/site", f"LEFT_OUT={LEFT_OUT}"]
        script = HERE / "scripts/arm/each_test.sh"
        inside = ["env", f"--chdir={folder}", *surroundings, "sh", str(script), program, str(seconds)]
        done = system.chroot(*inside)
        ended = re.findall(r"^(passed|ignored|failed|endless) (\S+)$", done.stdout, re.M)
        if done.returncode or not (ended or "no tests" in done.stdout):
            found["failed"][Path(program).name] = done.stdout[-1500:]
        for how, name in ended:
            if how in ("passed", "ignored"):
                found[how] += 1
            else:
                said = system.folder / "tmp/memfit-tests" / name.replace("::", ".")
                found["failed"][name] = f"{how}: {said.read_text(errors='replace')[-1500:]}"
    return found


def programs(messages: str) -> list[tuple[str, str]]:
    """The test programs that cargo built, each with its package's folder."""
    found = []
    for line in messages.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            found.append((str(Path(message["manifest_path"]).parent), message["executable"]))
    return found


if __name__ == "__main__":
    sys.exit(of_machine(Path(sys.argv[1]).resolve()))
