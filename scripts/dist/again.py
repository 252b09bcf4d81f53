"""Build the sdist of `make dist` in another folder, from nothing, and compare its wheel with the first one.

    python scripts/dist/again.py [dist]

This shows that the sdist is sufficient for a build, and that builds are reproducible.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import wheels

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, nargs="?", default=HERE.parents[1] / "dist")
    arguments = parser.parse_args()
    dist = arguments.dist.resolve()
    (wheel,) = dist.glob("*.whl")
    (packed,) = (each for each in dist.glob("memfit-*.tar.gz") if "linux" not in each.name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        with tarfile.open(packed) as tar:
            tar.extractall(folder)
        (root,) = folder.iterdir()
        again = folder / "again"
        build = [
            sys.executable,
            str(HERE / "build.py"),
            "--root",
            str(root),
            "--out",
            str(again),
            "--only",
            "wheel",
        ]
        environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
        subprocess.run(build, env=environment | {"SOURCE_DATE_EPOCH": str(wheels.epoch(wheel))}, check=True)
        check = [sys.executable, str(HERE / "check.py"), str(dist), "--again", str(again)]
        sys.exit(subprocess.run(check, check=False).returncode)


if __name__ == "__main__":
    main()
