"""Prepares a release: checks the version, prints the notes, and collects the files for the index.

python scripts/dist/release.py check --tag v1.2.3    # version, changelog and tag agree
python scripts/dist/release.py notes                 # the changelog's entries of this version
python scripts/dist/release.py upload                # dist/upload: the wheels and the sdist
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

import build

HEADING = re.compile(r"^## (?P<version>\S+) - (?P<date>\d{4}-\d\d-\d\d)$", re.M)


def notes(changelog: str, version: str) -> str:
    """The changelog's entries of a version; empty without a dated heading of it."""
    for heading in HEADING.finditer(changelog):
        if heading["version"] == version:
            rest = changelog[heading.end() :]
            following = re.search(r"^## ", rest, re.M)
            return rest[: following.start() if following else None].strip()
    return ""


def disagreements(root: Path, tag: str | None) -> list[str]:
    """Return what prevents the release of this version."""
    version = build.version(root)
    found = []
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is `{tag}`, and Cargo.toml says `{version}`: the tag of it is `v{version}`")
    changelog = (root / "CHANGELOG.md").read_text()
    if not notes(changelog, version):
        found.append(f"CHANGELOG.md has no entries under `## {version} - DATE`")
    waiting = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if tag is not None and waiting and waiting[1].strip():
        found.append("CHANGELOG.md has entries under `## Unreleased`: put them under the version's heading")
    return found


def upload(folder: Path, *others: Path) -> Path:
    """Return the folder with the files for the index: the sdist, and the wheels of all CPU architectures."""
    target = folder / "upload"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    sdists = [each for each in folder.glob("memfit-*.tar.gz") if "linux" not in each.name]
    wheels = [wheel for each in (folder, *others) for wheel in each.glob("*.whl")]
    for file in [*wheels, *sdists]:
        shutil.copy2(file, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["check", "notes", "upload"])
    parser.add_argument("--tag", help="the tag of the release")
    parser.add_argument("--dist", type=Path, default=build.HERE / "dist")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="`dist` of other CPU architectures")
    arguments = parser.parse_args()
    if arguments.what == "check":
        found = disagreements(build.HERE, arguments.tag or None)
        if found:
            sys.exit("\n".join(found))
        print(f"version, changelog and tag agree: {build.version(build.HERE)}")
    elif arguments.what == "notes":
        print(notes((build.HERE / "CHANGELOG.md").read_text(), build.version(build.HERE)))
    else:
        print(upload(arguments.dist, *arguments.also))


if __name__ == "__main__":
    main()
