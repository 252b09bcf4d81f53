"""Install the wheel of `make dist` in fresh Debian systems, and write measurements/install.md.

    python scripts/dist/matrix.py [dist] [--suites "bullseye bookworm trixie"] [--torch PYTHON]

Each system is made by debootstrap from the mirror that this machine's apt has, as root, and has neither a
compiler nor cargo. The wheel is installed by its own pip without an index. PyTorch is that of an interpreter
here (`--torch`), whose packages the system sees read-only, where its Python has the same version; without
one, `memfit run` is left out, and the table says so. A Python that is too old for memfit still loads its
libraries.
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
SUITES = {"bullseye": "Debian 11", "bookworm": "Debian 12", "trixie": "Debian 13"}
LOADS = "import ctypes, glob; [ctypes.CDLL(path) for path in sorted(glob.glob('/opt/wheel/memfit/_device/*.so*'))]"
LIBC = "import platform; print(platform.python_version(), platform.libc_ver()[1])"


def mirror() -> str:
    """The mirror of Debian that apt has here."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return next(line for line in found if line.rstrip("/").endswith("/debian"))


@dataclass
class System:
    """One fresh system, and what was seen in it."""

    suite: str
    folder: Path
    row: dict[str, str] = field(default_factory=dict)
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

    def timed(self, column: str, expected: int, told: str, *command: str) -> bool:
        begin = time.monotonic()
        done = self.chroot(*command)
        seconds = time.monotonic() - begin
        good = done.returncode == expected and told in done.stdout
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        self.row[column] = f"{seconds:.1f} s" if good else f"failed ({done.returncode}): {last[:100]}"
        print(f"{self.suite}: {column}: {self.row[column]}", flush=True)
        return good


def visit(system: System, wheel: Path, torch: tuple[str, str] | None) -> None:
    """Install and use memfit in a system."""
    python, libc = system.chroot("python3", "-c", LIBC).stdout.split()
    system.row |= {"Python": python, "glibc": libc}
    compilers = system.chroot("sh", "-c", "command -v cc gcc clang cargo rustc; true").stdout.split()
    if compilers:
        sys.exit(f"{system.suite} has a compiler: {compilers}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(system.folder / "opt/wheel")
    shutil.copy2(wheel, system.folder / "opt")
    system.timed("libraries load", 0, "", "python3", "-c", LOADS)
    if tuple(map(int, python.split(".")[:2])) < (3, 10):
        system.row["install"] = "not tried: memfit is for Python 3.10 and later"
        return
    environment = "import venv; venv.create('/opt/env', with_pip=True)"
    system.chroot("python3", "-c", environment)
    pip = ["/opt/env/bin/python", "-m", "pip", "install", "--no-index", "--quiet", f"/opt/{wheel.name}"]
    if not system.timed("install", 0, "", *pip):
        return
    shutil.copytree(ROOT / "examples", system.folder / "opt/examples", dirs_exist_ok=True)
    memfit, check = "/opt/env/bin/memfit", ("check", "/opt/examples/mistakes", "--format", "concise")
    system.timed("memfit check", 1, "zero-grad-inside-window", memfit, *check)
    if torch is None or torch[0] != ".".join(python.split(".")[:2]):
        system.row["memfit run"] = "not tried: no PyTorch for this Python at hand"
        return
    system.seen["packages"] = Path(torch[1])
    library = system.folder / f"opt/env/lib/python{torch[0]}/site-packages"
    (library / "torch.pth").write_text("/packages\n")
    run = [
        memfit,
        "run",
        "--gpu",
        "rtx-4090",
        "--",
        "/opt/env/bin/python",
        "/opt/examples/classifier/train.py",
    ]
    system.timed("memfit run", 0, "FITS", *run)
    doctor = system.chroot(memfit, "doctor").stdout
    system.row["torch"] = next((line.split()[2] for line in doctor.splitlines() if " torch " in line), "?")


def table(rows: list[System], wheel: Path) -> str:
    """What was seen, for people."""
    columns = ("glibc", "Python", "torch", "libraries load", "install", "memfit check", "memfit run")
    lines = [
        "# Installing in fresh systems",
        "",
        f"Written by `make dist-matrix` ({datetime.date.today()}), with `{wheel.name}` ({wheel.stat().st_size / 1e6:.1f} MB).",
        "Each system is a fresh one of debootstrap with Python and no compiler; pip has no index. Seconds are those of one run on a",
        "machine with two cores that did other work at the same time.",
        "",
        "| system | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for system in rows:
        cells = " | ".join(system.row.get(column, "-") for column in columns)
        lines.append(f"| {SUITES.get(system.suite, system.suite)} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--suites", default=" ".join(SUITES))
    parser.add_argument("--torch", help="an interpreter with PyTorch")
    parser.add_argument(
        "--systems", type=Path, help="a folder of systems made before, which are taken as they are"
    )
    arguments = parser.parse_args()
    (wheel,) = arguments.dist.resolve().glob("*.whl")
    torch = None
    if arguments.torch:
        ask = "import sys, torch, os; print('%d.%d' % sys.version_info[:2], os.path.dirname(os.path.dirname(torch.__file__)))"
        said = subprocess.run(
            [arguments.torch, "-c", ask], capture_output=True, text=True, check=True
        ).stdout.split()
        torch = (said[0], said[1])
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for suite in arguments.suites.split():
            folder = (arguments.systems or Path(temporary)) / suite
            if not folder.exists():
                command = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", suite]
                if subprocess.run([*command, str(folder), mirror()], check=False).returncode:
                    sys.exit(f"debootstrap cannot make {suite} here: it takes root and a mirror")
                subprocess.run(["umount", "-q", str(folder / "proc")], check=False)
            rows.append(System(suite, folder))
            visit(rows[-1], wheel, torch)
            if arguments.systems is None:
                shutil.rmtree(folder)
    TARGET.write_text(table(rows, wheel))
    print(TARGET.read_text())


if __name__ == "__main__":
    main()
