"""Rehearse a release: install from an index in a folder what `make dist` built, and run it.

    python scripts/dist/rehearse.py [dist] [--torch PYTHON]

Nothing leaves the machine. A fresh environment installs memfit from a simple index made of files; the command
checks the examples, the doctor looks around, and where an interpreter with PyTorch is at hand (`--torch`) the
example is dry-run, by the wheel and by the stand-alone command. The steps of `action.yml` run with the wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import action
import release

ROOT = Path(__file__).resolve().parents[2]


def index(files: list[Path], folder: Path) -> Path:
    """A simple index of these files of one project."""
    project = folder / "simple/memfit"
    project.mkdir(parents=True)
    links = []
    for file in files:
        shutil.copy2(file, project)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        links.append(
            f'<a href="{file.name}#sha256={digest}" data-requires-python="&gt;=3.10">{file.name}</a>'
        )
    (project / "index.html").write_text(
        "<!DOCTYPE html>\n<html><body>\n" + "<br>\n".join(links) + "\n</body></html>\n"
    )
    (project.parent / "index.html").write_text(
        '<!DOCTYPE html>\n<html><body><a href="memfit/">memfit</a></body></html>\n'
    )
    return project.parent


class Steps:
    """Runs commands, checks their exit status, and times them."""

    def __init__(self, folder: Path):
        self.folder = folder
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}

    def run(self, what: str, command: list[str], status: int = 0, told: str = "", **more: str) -> str:
        begin = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != status or told not in done.stdout:
            sys.exit(f"{what}: `{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}")
        print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)
        return done.stdout


def uses(steps: Steps, memfit: str, torch: str | None) -> None:
    """Run the first commands of a new user."""
    steps.run("version", [memfit, "--version"])
    mistakes = str(ROOT / "examples/mistakes")
    steps.run("check", [memfit, "check", mistakes, "--format", "concise"], 1, "zero-grad-inside-window")
    if torch:
        example = [torch, str(ROOT / "examples/classifier/train.py")]
        steps.run("run", [memfit, "run", "--gpu", "rtx-4090", "--", *example], 0, "FITS")
        steps.run(
            "run, too small",
            [memfit, "run", "--gpu", "rtx-4060", "--no-prove", "--", *example],
            1,
            "OUT OF MEMORY",
        )
    # Without a torch in this environment the doctor says what to install.
    said = subprocess.run(
        [memfit, "doctor"], env=steps.environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if "libcuda.so.1" not in said.stdout or re.search(r"^(✗|!!) *lib", said.stdout, re.M):
        sys.exit(f"the doctor does not find the device libraries:\n{said.stdout}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--torch", type=os.path.abspath, help="an interpreter with PyTorch, to run the example with")
    arguments = parser.parse_args()
    dist = arguments.dist.resolve()
    torch = arguments.torch
    if torch and subprocess.run([torch, "-c", "import torch"], capture_output=True, check=False).returncode:
        print(f"`{torch}` has no PyTorch: the example is not run")
        torch = None
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=dist, check=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        steps = Steps(folder)
        simple = index(sorted(release.upload(dist).iterdir()), folder)
        shutil.rmtree(dist / "upload")
        steps.run("environment", [sys.executable, "-m", "venv", "fresh"])
        python = str(folder / "fresh/bin/python")
        # Neither cargo nor a compiler is on this path.
        install = [python, "-m", "pip", "install", "--no-cache-dir", "--only-binary", ":all:", "--isolated"]
        install += ["--index-url", simple.as_uri(), "memfit"]
        steps.run("install", install, PATH=str(folder / "fresh/bin"))
        print("the installed wheel")
        uses(steps, str(folder / "fresh/bin/memfit"), torch)
        (packed,) = dist.glob("memfit-*linux*.tar.gz")
        with tarfile.open(packed) as tar:
            tar.extractall(folder / "alone")
        print("the stand-alone command")
        uses(steps, str(next((folder / "alone").glob("*/bin/memfit"))), torch)
        (wheel,) = dist.glob("*.whl")
        action.rehearse(ROOT / "action.yml", wheel, folder / "action")
        print("the steps of action.yml ran with the wheel")
    print("the release was rehearsed: what is left is to upload it")


if __name__ == "__main__":
    main()
