"""Installs the hooks of `memfit check` as others do, from a clone of this repository, and runs them.

    python scripts/installs.py [--folder FOLDER]

A hook is installed by pre-commit into a scratch repository, which takes pip's build of the whole product, and
keeps a commit out that has an error in it, and lets one in that has none; so does the hook that takes the
installed memfit. (`make release-rehearsal` runs the action.) It needs what `pip install .` needs, and
pre-commit's packages from the registry; with `CARGO_TARGET_DIR` set, the builds share what they have
compiled.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BAD = """import torch

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    (criterion(model(x), y) / 4).backward()
    if (step + 1) % 4 == 0 or step + 1 == len(loader):
        optimizer.step()
"""
GOOD = BAD.replace("    optimizer.zero_grad()\n", "") + "        optimizer.zero_grad()\n"
RULE = "zero-grad-inside-window"


def run(command: list[str], folder: Path, status: int = 0, **more: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = f"`{' '.join(command)}` ended with {done.returncode} and not {status}:\n{done.stdout}"
    assert done.returncode == status, told
    return done.stdout


def git(folder: Path, *command: str, status: int = 0, **more: str) -> str:
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    return run(["git", *who, *command], folder, status, **more)


def hook(name: str, clone: Path, folder: Path, environment: dict[str, str]) -> None:
    """Installs a hook into a repository of its own, and commits a script with an error and one without."""
    project = folder / name
    project.mkdir()
    git(project, "init", "--quiet")
    revision = git(clone, "rev-parse", "HEAD").strip()
    config = f"repos:\n- repo: {clone}\n  rev: {revision}\n  hooks:\n  - id: {name}\n"
    (project / ".pre-commit-config.yaml").write_text(config)
    begin = time.monotonic()
    run([str(folder / "tools/bin/pre-commit"), "install", "--install-hooks"], project, **environment)
    print(f"{name}: installed in {time.monotonic() - begin:.0f} s", flush=True)
    (project / "train.py").write_text(BAD)
    git(project, "add", ".")
    said = git(project, "commit", "-m", "Train", status=1, **environment)
    assert RULE in said, said
    (project / "train.py").write_text(GOOD)
    git(project, "add", ".")
    said = git(project, "commit", "-m", "Train", **environment)
    assert re.search(r"memfit check\.+Passed", said), said
    print(f"{name}: keeps the error out, and lets its cure in", flush=True)


def installed(clone: Path, folder: Path) -> dict[str, str]:
    """An environment in which memfit is there."""
    run([sys.executable, "-m", "venv", str(folder / "memfit-there")], folder)
    run([str(folder / "memfit-there/bin/python"), "-m", "pip", "install", "--quiet", str(clone)], folder)
    return {"PATH": f"{folder / 'memfit-there/bin'}:{os.environ['PATH']}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="an empty one, where all of it is done")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        clone = folder / "memfit"
        git(folder, "clone", "--quiet", str(ROOT), str(clone))
        run([sys.executable, "-m", "venv", str(folder / "tools")], folder)
        run([str(folder / "tools/bin/python"), "-m", "pip", "install", "--quiet", "pre-commit"], folder)
        cache = {"PRE_COMMIT_HOME": str(folder / "cache")}
        hook("memfit-check-system", clone, folder, cache | installed(clone, folder))
        hook("memfit-check", clone, folder, cache)


if __name__ == "__main__":
    main()
