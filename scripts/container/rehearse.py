"""Carry out the steps of the Containerfile in a scratch folder, without a container engine.

    python scripts/container/rehearse.py [--keep] [--dry-run]

COPY copies this tree, RUN lines are run by a shell with the paths of the image moved into the scratch
folder, ENV and WORKDIR take effect as they would. Packages of the distribution are not installed: each is
looked up, and must be either installed here or known to the package manager. At the end the container's
own command is run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOVED = ("/memfit", "/workspace")


def instructions(text: str) -> list[tuple[str, str]]:
    """The file's instructions, continued lines joined, comments left out."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    found = []
    for line in joined.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            found.append((word.upper(), " ".join(rest.split())))
    return found


class Rehearsal:
    """The state that the instructions change."""

    def __init__(self, scratch: Path, dry: bool):
        self.scratch = scratch
        self.dry = dry
        self.env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        for name, value in os.environ.items():
            if name.lower().endswith("_proxy") or name.startswith(
                ("PIP_", "UV_", "CARGO_", "RUSTUP_", "SSL_")
            ):
                self.env[name] = value
        self.folder = scratch
        self.entry: list[str] = []

    def moved(self, text: str) -> str:
        for path in MOVED:
            text = re.sub(rf"(?<![\w.-]){path}(?=[/:\s\"']|$)", f"{self.scratch}{path}", text)
        return text

    def carry_out(self, word: str, rest: str) -> None:
        print(f"--> {word} {rest}", flush=True)
        getattr(self, f"do_{word.lower()}")(rest)

    def do_from(self, image: str) -> None:
        need = [("cargo", "--version"), ("cc", "--version"), ("python3", "--version")]
        for tool in need:
            if shutil.which(tool[0]):
                print("   ", subprocess.check_output(tool, text=True).splitlines()[0])
        if image.startswith("--platform"):
            sys.exit("the image must be for the machine's own processor, not for a stated one")

    def do_run(self, command: str) -> None:
        if "apt-get install" in command:
            self.look_up(command)
            return
        if not self.dry:
            subprocess.run(["sh", "-euc", self.moved(command)], cwd=self.folder, env=self.env, check=True)

    def look_up(self, command: str) -> None:
        words = command.split("apt-get install", 1)[1].split("&&")[0].split()
        for package in (word for word in words if not word.startswith("-")):
            installed = (
                subprocess.run(["dpkg", "-s", package], capture_output=True, check=False).returncode == 0
            )
            known = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
            if not installed and known.returncode:
                sys.exit(f"no such package of the distribution: {package}")
            print(f"    {package}: {'installed' if installed else 'known'}")

    def do_workdir(self, path: str) -> None:
        self.folder = Path(self.moved(path))
        self.folder.mkdir(parents=True, exist_ok=True)

    def do_copy(self, rest: str) -> None:
        source, target = rest.split()
        if source != ".":
            sys.exit(f"only the whole tree is copied, not {source}")
        names = subprocess.check_output(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT
        )
        for name in filter(None, names.decode().split("\0")):
            copy = Path(self.moved(target)) / name
            if (ROOT / name).is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy)

    def do_env(self, rest: str) -> None:
        for pair in rest.split():
            name, _, value = pair.partition("=")
            self.env[name] = self.moved(value).replace("$PATH", self.env.get("PATH", ""))

    def do_entrypoint(self, rest: str) -> None:
        self.entry = json.loads(rest)

    def do_cmd(self, rest: str) -> None:
        script = Path(self.moved(self.entry[0]))
        copy = script.with_name("enter.rehearsed")
        copy.write_text(self.moved(script.read_text()))
        copy.chmod(0o755)
        if not self.dry:
            subprocess.run([str(copy), *json.loads(rest)], cwd=self.folder, env=self.env, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the scratch folder behind")
    parser.add_argument("--dry-run", action="store_true", help="do everything but run the commands")
    args = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="memfit-container-"))
    try:
        rehearsal = Rehearsal(scratch, args.dry_run)
        for word, rest in instructions((ROOT / "Containerfile").read_text()):
            rehearsal.carry_out(word, rest)
        print("every step of the Containerfile was carried out" + (" (dry)" if args.dry_run else ""))
    finally:
        if args.keep:
            print(f"left behind: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
