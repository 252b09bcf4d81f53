"""Run memfit for ARM under emulation: workloads and the Rust tests, beside the same on this machine.

    python scripts/arm64.py [--folder target/arm64] [--only peaks|rust]

`make arm64` calls this, in an environment with `requirements/dist.txt`. It cross-compiles the wheel with zig,
installs it beside PyTorch's own CUDA wheel for ARM in a Debian for ARM, and runs scripts there on virtual
GPUs: peaks have to be those of the same scripts here. Then it runs the Rust tests. It takes root (for
`chroot`), qemu-user-static and debootstrap from the machine's packages, and Rust's standard library for ARM
(`rustup target add aarch64-unknown-linux-gnu`), and goes on where an earlier call ended.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts/dist"))

import build  # noqa: E402
import matrix  # noqa: E402

TABLE = ROOT / "measurements/arm64.md"
# The environment of the tests, with this machine's own memfit.
BIN = ROOT / ".venv/bin"
TARGET = "aarch64-unknown-linux-gnu"
EMULATOR = "qemu-aarch64-static"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# ELF, 64 bits, little-endian, executable or shared, AArch64; `F` opens the emulator before the chroot.
FORMAT = (
    rb":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    rb":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    rb":/usr/bin/qemu-aarch64-static:FP"
)
SUITE = "bookworm"
PYTHON = "3.11"
# The command in the emulated system, which sees the project and the packages.
INSIDE = ("env", "--chdir=/memfit", "PYTHONPATH=/site", "/site/bin/memfit")
# What torch needs to be imported, beside the CUDA libraries that it is linked with.
PACKAGES = (
    *("torch", "torchvision", "numpy", "pillow", "sympy", "mpmath", "networkx", "jinja2", "markupsafe"),
    *("filelock", "fsspec", "typing-extensions"),
)


@dataclass(frozen=True)
class Case:
    """A script on a virtual GPU."""

    gpu: str
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"`{' '.join(self.command)}` on {self.gpu}"


CASES = (
    Case("rtx-4090", ("examples/classifier/train.py", "--workers", "0")),
    Case("rtx-3060", ("examples/classifier/train.py", "--workers", "2")),
    Case("t4", ("workloads/resnet.py",)),
    Case("a100-80gb", ("workloads/vit.py",)),
    Case("h100-sxm", ("workloads/lstm.py",)),
    Case("rtx-4090", ("workloads/unet.py",)),
    Case("h100-sxm", ("workloads/checkpointed.py",)),
    Case("a100-80gb", ("workloads/gan.py",)),
)


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], text=True, **options)


def require_tools() -> None:
    """End with what is missing, and the command that brings it."""
    if os.geteuid() != 0:
        sys.exit("the emulated system is a chroot, which takes root")
    packages = {EMULATOR: "qemu-user-static", "debootstrap": "debootstrap"}
    missing = [package for tool, package in packages.items() if shutil.which(tool) is None]
    if missing:
        sys.exit(f"there is no {' and no '.join(missing)}: `apt-get install {' '.join(missing)}`")
    installed = run(
        "rustc", "--print", "target-libdir", "--target", TARGET, capture_output=True
    ).stdout.strip()
    if not Path(installed).is_dir():
        sys.exit(f"Rust has no standard library for ARM here: `rustup target add {TARGET}`")


def register_emulator() -> None:
    """Have the kernel start ARM's programs with the emulator, in chroots too."""
    if not (BINFMT / "register").exists():
        run("mount", "-t", "binfmt_misc", "none", BINFMT, check=True)
    if not (BINFMT / "qemu-aarch64").exists():
        (BINFMT / "register").write_bytes(FORMAT)


def make_root(folder: Path) -> None:
    """A Debian for ARM with Python in it."""
    done = folder.with_suffix(".done")
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    include = "--include=python3,libgomp1"
    run(
        "debootstrap",
        "--arch=arm64",
        "--variant=minbase",
        include,
        SUITE,
        folder,
        matrix.mirror(),
        check=True,
    )
    done.touch()


def pinned() -> list[str]:
    """The releases of the tests' requirements, for this Python."""
    found = {}
    for line in (ROOT / "requirements/test.txt").read_text().splitlines():
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


def install(site: Path, *requirements: str | Path) -> None:
    """Unpack wheels for ARM into a folder; nothing of them runs."""
    command: list[str | Path] = [
        BIN / "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    command += ["--python-platform", "aarch64-manylinux_2_36", "--python-version", PYTHON, "--target", site]
    run(*command, *requirements, check=True)


def install_torch(site: Path) -> None:
    done = site.with_suffix(".torch")
    wanted = pinned()
    if not done.exists() or done.read_text().split() != wanted:
        install(site, *wanted)
        done.write_text("\n".join(wanted))


def build_wheel(folder: Path, system: Path) -> Path:
    """The wheel for ARM."""
    out = folder / "dist"
    command = [sys.executable, ROOT / "scripts/dist/build.py", "--processor", "aarch64", "--only", "wheel"]
    environment = os.environ | {"MEMFIT_RUNNER": f"{EMULATOR} -L {system}"}
    run(*command, "--out", out, env=environment, check=True)
    run(sys.executable, ROOT / "scripts/dist/check.py", out, check=True)
    return next(out.glob("*.whl"))


def verb(case: Case) -> list[str]:
    # Under emulation everything takes ten to thirty times as long.
    return ["run", "--gpu", case.gpu, "--format", "json", "--timeout", "3600", "--", "python3", *case.command]


def answer(done: subprocess.CompletedProcess[str], case: Case) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{case}: no answer (status {done.returncode})\n{done.stderr[-3000:]}")
    return report


def compare(case: Case, here: dict[str, Any], there: dict[str, Any], seconds: float) -> str:
    """One row of the table."""
    cells = [str(case), here["verdict"], there["verdict"]]
    for name in ("allocated", "reserved", "device"):
        one, other = here["peak"][name], there["peak"][name]
        cells.append(f"{one:,} B" if one == other else f"**{one:,} B and {other:,} B**")
    return "| " + " | ".join([*cells, f"{seconds:.0f} s"]) + " |"


def peaks(folder: Path) -> list[str]:
    root, site = folder / "root", folder / "site"
    register_emulator()
    make_root(root)
    install_torch(site)
    install(site, build_wheel(folder, root))
    system = matrix.System(SUITE, root, seen={"memfit": ROOT, "site": site})
    rows, releases = [], set()
    for case in CASES:
        here = answer(run(BIN / "memfit", *verb(case), cwd=ROOT, capture_output=True), case)
        began = time.monotonic()
        there = answer(system.chroot(*INSIDE, *verb(case), stderr=subprocess.PIPE), case)
        rows.append(compare(case, here, there, time.monotonic() - began))
        releases |= {f"{platform.machine()}: {here['torch']}", f"aarch64: {there['torch']}"}
        print(rows[-1], flush=True)
    return [
        f"PyTorch's own wheels ({', '.join(sorted(releases))}) run the same scripts on the same virtual GPUs, here and for ARM",
        f"under {version(EMULATOR)}. A peak that differs has both figures.",
        "",
        "| script | here | ARM | allocated | reserved | device | emulated for |",
        "|---|---|---|--:|--:|--:|--:|",
        *rows,
    ]


def version(program: str) -> str:
    return run(program, "--version", capture_output=True).stdout.splitlines()[0]


def rust(folder: Path) -> list[str]:
    """The Rust tests, each test program under the emulator."""
    name = TARGET.upper().replace("-", "_")
    environment = os.environ | {
        f"CARGO_TARGET_{name}_RUNNER": f"{EMULATOR} -L {folder / 'root'}",
        "CARGO_TARGET_DIR": str(folder / "tests"),
        "PROPTEST_RNG_SEED": "2026",
        # Emulated, a property's many cases take minutes.
        "PROPTEST_CASES": "16",
    }
    command = [
        "cargo-zigbuild",
        "test",
        "--workspace",
        "--exclude",
        "memfit-tidy",
        "--locked",
        "--no-fail-fast",
    ]
    command += ["--target", f"{TARGET}.{build.GLIBC}", "--lib", "--bins", "--tests"]
    done = run(*command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    results = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", done.stdout)
    passed, failed, ignored = (sum(int(each[at]) for each in results) for at in range(3))
    names = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED$", done.stdout, re.M)))
    if not results:
        sys.exit(f"the tests did not run:\n{done.stdout[-3000:]}")
    return [
        f"Rust tests, built for `{TARGET}`: {passed} passed, {failed} failed, {ignored} are child processes of others.",
        *(f"- failed: `{each}`" for each in names),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "target/arm64", help="where everything is kept")
    parser.add_argument("--only", choices=["peaks", "rust"])
    parser.add_argument(
        "--memfit", default=str(ROOT / ".venv/bin/memfit"), help="the command of this machine"
    )
    arguments = parser.parse_args()
    require_tools()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "results.json"
    results: dict[str, list[str]] = json.loads(store.read_text()) if store.exists() else {}
    for part, measure in (("peaks", peaks), ("rust", rust)):
        if arguments.only in (None, part):
            results[part] = measure(folder)
            store.write_text(json.dumps(results))
    commit = run("git", "rev-parse", "--short", "HEAD", cwd=ROOT, capture_output=True).stdout.strip()
    head = ["# Linux on ARM", "", f"Written by `make arm64` ({commit}, {datetime.date.today()}).", ""]
    body = "\n\n".join("\n".join(results[part]) for part in ("peaks", "rust") if part in results)
    TABLE.write_text("\n".join(head) + body + "\n")
    print(body)


if __name__ == "__main__":
    main()
