"""Install the wheel of `make dist` in fresh Debian systems, and write measurements/install.md.

    python scripts/dist/matrix.py [dist] [--suites "bullseye bookworm trixie"] [--torch "2.6.0 2.9.1 2.15.0"]
        [--python FOLDER]… [--keep FOLDER]

Each system is created by debootstrap (as root) from the mirror of this machine's apt, and has neither a
compiler nor cargo. memfit is installed into the system's own Python, and into each one given by `--python`: a
folder with `bin/python3` and its libraries, mounted read-only under the same path. That Python's own pip
installs memfit, without a package index. The packages of each PyTorch are fetched here by uv, and mounted
read-only, too. If a Python does not start in a system, or a release of PyTorch has no wheel for it, the row
says so.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "measurements/install.md"
SUITES = {"bullseye": "Debian 11", "bookworm": "Debian 12", "trixie": "Debian 13", "sid": "Debian unstable"}
TORCH = "2.6.0 2.9.1 2.15.0"
OLDEST = (3, 10)
# Packages of a system: its own Python, and libraries that other Pythons take from the system.
INCLUDED = "python3,python3-venv,zlib1g,libffi-dev"
LOADS = "import ctypes, glob; [ctypes.CDLL(path) for path in sorted(glob.glob('/opt/wheel/memfit/_device/*.so*'))]"
FACTS = "import platform; print(platform.python_version(), platform.libc_ver()[1])"
COLUMNS = ("glibc", "Python", "torch", "libraries load", "install", "memfit check", "memfit run")


def mirror() -> str:
    """Return the mirror of Debian that apt has here."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return next(line for line in found if line.rstrip("/").endswith("/debian"))


@dataclass
class System:
    """A fresh system."""

    suite: str
    folder: Path
    # Folders here that it may read, by their names in its root.
    seen: dict[str, Path] = field(default_factory=dict)
    # Folders that it may write to, too.
    written: dict[str, Path] = field(default_factory=dict)

    def chroot(self, *command: str, stderr: int = subprocess.STDOUT) -> subprocess.CompletedProcess[str]:
        """Run a command in it, with its own /proc and an empty /dev/shm."""
        folders = [("bind,ro", *each) for each in self.seen.items()]
        folders += [("bind", *each) for each in self.written.items()]
        inside = [
            "mount -t proc proc proc",
            "mount --rbind /dev dev",
            "mount -t tmpfs tmpfs dev/shm",
            *(
                f"mkdir -p {name} && mount -o {how} {shlex.quote(str(path))} {name}"
                for how, name, path in folders
            ),
            'exec chroot . env -i PATH=/usr/bin:/bin HOME=/root TERM=dumb "$@"',
        ]
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--kill-child", "sh", "-c", " && ".join(inside), "sh", *command],
            cwd=self.folder,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
        )

    def timed(self, expected: int, told: str, *command: str) -> tuple[bool, str]:
        """Run a command; return `True` if it ended as expected, and its seconds or its last line."""
        begin = time.monotonic()
        done = self.chroot(*command)
        seconds = time.monotonic() - begin
        good = done.returncode == expected and told in done.stdout
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        said = f"{seconds:.1f} s" if good else f"failed ({done.returncode}): {last[:100]}"
        print(f"{self.suite}: {' '.join(command)[:90]}: {said}", flush=True)
        return good, said


def minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    first, second = version.split(".")[:2]
    return int(first), int(second)


class Torches:
    """The packages of each PyTorch for each Python, fetched once."""

    def __init__(self, folder: Path, versions: list[str]) -> None:
        self._folder = folder
        self.versions = versions

    def packages(self, torch: str, python: tuple[int, int]) -> Path | str:
        """Return the folder, or why there is none."""
        release = ".".join(map(str, python))
        folder = self._folder / f"torch-{torch}-python-{release}"
        if not (folder / "torch/version.py").exists():
            beside = Path(sys.executable).with_name("uv")
            uv = str(beside) if beside.exists() else str(ROOT / ".venv/bin/uv")
            command = [uv, "pip", "install", "--quiet", "--target", str(folder), "--python-version", release]
            command += ["--only-binary", ":all:", f"torch=={torch}", "torchvision", "numpy"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                if "no wheel" in done.stderr or "No solution found" in done.stderr:
                    return "no wheel for this Python"
                sys.exit(done.stderr)
        return folder


def visit(system: System, wheel: Path, prefix: Path | None, torches: Torches) -> list[dict[str, str]]:
    """Install and use memfit with one Python of a system; return a row for each release of PyTorch."""
    system.seen = {str(prefix).lstrip("/"): prefix} if prefix is not None else {}
    python = str(prefix / "bin/python3") if prefix is not None else "python3"
    facts = system.chroot(python, "-c", FACTS)
    row = {"system": SUITES.get(system.suite, system.suite)}
    if facts.returncode:
        version = prefix.name if prefix is not None else "?"
        return [row | {"Python": version, "install": "not tried: this Python does not start on this system"}]
    version, libc = facts.stdout.split()
    row |= {"Python": version, "glibc": libc}
    row["libraries load"] = system.timed(0, "", python, "-c", LOADS)[1]
    if minor(version) < OLDEST:
        return [row | {"install": "not tried: memfit needs Python 3.10 or later"}]
    environment = f"/opt/env-{version}"
    system.chroot(python, "-c", f"import venv; venv.create('{environment}', with_pip=True)")
    inner = f"{environment}/bin/python"
    install = [inner, "-m", "pip", "install", "--no-index", "--quiet", f"/opt/{wheel.name}"]
    good, row["install"] = system.timed(0, "", *install)
    if not good:
        return [row]
    memfit, check = f"{environment}/bin/memfit", ("check", "/opt/examples/mistakes", "--format", "concise")
    row["memfit check"] = system.timed(1, "zero-grad-inside-window", memfit, *check)[1]
    return [
        row | run(system, torches.packages(torch, minor(version)), torch, environment, memfit)
        for torch in torches.versions
    ]


def run(system: System, packages: Path | str, torch: str, environment: str, memfit: str) -> dict[str, str]:
    """Run the example with one PyTorch."""
    if isinstance(packages, str):
        return {"torch": torch, "memfit run": f"not tried: {packages}"}
    system.seen["packages"] = packages
    (library,) = (system.folder / environment.lstrip("/")).glob("lib/python3*/site-packages")
    (library / "torch.pth").write_text("/packages\n")
    example = [f"{environment}/bin/python", "/opt/examples/classifier/train.py"]
    said = system.timed(0, "FITS", memfit, "run", "--gpu", "rtx-4090", "--", *example)[1]
    doctor = system.chroot(memfit, "doctor").stdout
    found = next((line.split()[2] for line in doctor.splitlines() if " torch " in line), torch)
    return {"torch": found, "memfit run": said}


def prepare(suite: str, folder: Path, wheel: Path) -> System:
    """Make a system, with the wheel and the examples in it."""
    system = System(suite, folder)
    if not folder.exists():
        # Debian 11 and later name libffi differently; its development package is in all of them.
        command = ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", suite]
        if subprocess.run([*command, str(folder), mirror()], check=False).returncode:
            sys.exit(f"debootstrap cannot make {suite} here: it takes root and a mirror")
        subprocess.run(["umount", "-q", str(folder / "proc")], check=False)
    compilers = system.chroot("sh", "-c", "command -v cc gcc clang cargo rustc; true").stdout.split()
    if compilers:
        sys.exit(f"{suite} has a compiler: {compilers}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "opt/wheel")
    shutil.copy2(wheel, folder / "opt")
    shutil.copytree(ROOT / "examples", folder / "opt/examples", dirs_exist_ok=True)
    return system


def table(rows: list[dict[str, str]], wheel: Path) -> str:
    """Return the page."""
    lines = [
        "# Installing on fresh Debian systems",
        "",
        f"Written by `make dist-matrix` ({datetime.date.today()}), with `{wheel.name}` ({wheel.stat().st_size / 1e6:.1f} MB).",
        "Each system is created by debootstrap, with Python and without a compiler; pip installs without a package index. Pythons",
        "that a system does not have were built on Debian 12. They and PyTorch's packages are mounted read-only. Times are wall",
        "time of a single run, on a machine with two cores that did other work at the same time.",
        "",
        "*Libraries load* is the time to load all of memfit's native libraries, *memfit check* and *memfit run* the time of a command",
        "on an example.",
        "",
        "| system | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for row in rows:
        lines.append("| " + " | ".join(row.get(column, "-") for column in ("system", *COLUMNS)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--suites", default="bullseye bookworm trixie")
    parser.add_argument("--torch", default=TORCH, help="releases of PyTorch")
    parser.add_argument("--python", type=Path, action="append", default=[], help="the prefix of another Python")
    parser.add_argument("--keep", type=Path, help="a folder for systems and packages, used again by a later call")
    arguments = parser.parse_args()
    (wheel,) = arguments.dist.resolve().glob("*.whl")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        torches = Torches(folder, arguments.torch.split())
        for suite in arguments.suites.split():
            system = prepare(suite, folder / suite, wheel)
            for prefix in (None, *arguments.python):
                rows += visit(system, wheel, prefix.resolve() if prefix else None, torches)
                TARGET.write_text(table(rows, wheel))
    print(TARGET.read_text())


if __name__ == "__main__":
    main()
