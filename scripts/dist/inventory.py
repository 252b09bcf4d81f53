"""Lists the crates compiled into the distribution, with release, licence and licence texts.

Owns the bill of materials (CycloneDX) and the notices that go into the wheel and the tarball. Both come from
`cargo metadata` and the sources that cargo unpacked, so that they name what was built and nothing else: only
crates that are linked in, not those that a build runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Distributed files: the Python module, the three libraries of the script's process, the command.
SHIPPED = ("memfit-py", "memfit-vgpu", "memfit-nvml", "memfit-watch", "memfit-cli")
FEATURES = "memfit-py/turbo-simd"
TEXT = re.compile(r"^(LICEN[CS]E|COPYING|NOTICE|UNLICENSE|COPYRIGHT|README\.ijg)", re.I)
# Folders of other people's source inside a crate that is compiled into it.
VENDORED = {"turbojpeg-sys": ["libjpeg-turbo"]}


class InventoryError(Exception):
    """A component with an unknown licence."""


@dataclass(frozen=True)
class Component:
    """One crate that is linked in."""

    name: str
    version: str
    licence: str
    checksum: str | None
    authors: tuple[str, ...]
    folder: Path

    def texts(self) -> Iterator[tuple[str, str]]:
        """The names and contents of its licence files."""
        for folder in [self.folder, *(self.folder / name for name in VENDORED.get(self.name, []))]:
            for file in sorted(folder.iterdir()):
                if file.is_file() and TEXT.match(file.name):
                    name = file.relative_to(self.folder).as_posix()
                    yield name, file.read_text(encoding="utf-8", errors="replace").strip()


def components(root: Path, target: str) -> list[Component]:
    """The crates of others that are in what is shipped for a target."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    command += ["--features", FEATURES]
    said = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout
    return linked(json.loads(said), checksums(root / "Cargo.lock"))


def checksums(lock: Path) -> dict[tuple[str, str], str]:
    """The checksums that the lock file holds the crates to."""
    pattern = r'name = "(.+?)"\nversion = "(.+?)"\nsource = ".+?"\nchecksum = "(.+?)"'
    return {(name, version): checksum for name, version, checksum in re.findall(pattern, lock.read_text())}


def linked(metadata: dict[str, Any], known: dict[tuple[str, str], str]) -> list[Component]:
    """The crates that the shipped ones are linked with, without the workspace's own."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [key for key, package in packages.items() if package["name"] in SHIPPED and not package["source"]]
    seen: set[str] = set()
    while todo:
        key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        for dependency in nodes[key]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            is_macro = any(
                "proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"]
            )
            if is_linked and not is_macro:
                todo.append(dependency["pkg"])
    found = []
    for package in (packages[key] for key in seen):
        if package["source"] is None:
            continue
        name, version, licence = package["name"], package["version"], package["license"]
        if not licence:
            raise InventoryError(f"{name} {version} names no licence")
        folder, authors = Path(package["manifest_path"]).parent, tuple(package["authors"])
        found.append(Component(name, version, licence, known.get((name, version)), authors, folder))
    return sorted(found, key=lambda each: (each.name, each.version))


def notices(found: Iterable[Component], libraries: Iterable[tuple[str, Path]], mit: str) -> str:
    """The licence texts of everything that is linked in, each text once. `mit` is the text of that licence,
    for crates under it that bring none along.
    """
    users: dict[str, tuple[str, list[str]]] = {}

    def add(text: str, user: str) -> None:
        users.setdefault(" ".join(text.split()), (text, []))[1].append(user)

    for each in found:
        texts = list(each.texts())
        for name, text in texts:
            add(text, f"{each.name} {each.version} ({each.licence}), {name}")
        if texts:
            continue
        if "MIT" not in each.licence:
            raise InventoryError(f"{each.name} {each.version} ({each.licence}) brings no licence text along")
        holders = ", ".join(each.authors) or f"the authors of {each.name}"
        text = mit[mit.index("Permission is hereby granted") :]
        add(f"Copyright (c) {holders}\n\n{text}", f"{each.name} {each.version} ({each.licence})")
    for name, file in libraries:
        add(file.read_text(encoding="utf-8", errors="replace").strip(), name)
    parts = ["memfit is under MIT or Apache-2.0. Compiled into it are the following works of others.\n"]
    for text, names in users.values():
        parts.append("-" * 78 + "\n" + "\n".join(names) + "\n\n" + text + "\n")
    return "\n".join(parts)


def bill_of_materials(found: Iterable[Component], version: str, libraries: Iterable[str]) -> str:
    """The components as CycloneDX has them; the same for the same components."""
    components: list[dict[str, Any]] = []
    for each in found:
        reference = f"pkg:cargo/{each.name}@{each.version}"
        entry = {
            "type": "library",
            "bom-ref": reference,
            "name": each.name,
            "version": each.version,
            "purl": reference,
            "licenses": [{"expression": each.licence.replace("/", " OR ")}],
        }
        if each.checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": each.checksum}]
        components.append(entry)
    components += [{"type": "library", "bom-ref": name, "name": name} for name in libraries]
    main = {"type": "application", "bom-ref": f"memfit@{version}", "name": "memfit", "version": version}
    main |= {"purl": f"pkg:pypi/memfit@{version}", "licenses": [{"expression": "MIT OR Apache-2.0"}]}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def runtime_licences(zig: Path | None) -> list[tuple[str, Path]]:
    """The licence texts of the run-time libraries that compilers link in: Rust's own and zig's unwinder."""
    rustc = os.environ.get("RUSTC", "rustc")
    said = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=True).stdout
    folder = Path(said.strip()) / "share/doc/rust/licenses"
    found = [
        ("the Rust standard library (MIT OR Apache-2.0)", folder / f"{name}.txt")
        for name in ("MIT", "Apache-2.0")
    ]
    if zig:
        found.append(("LLVM libunwind (Apache-2.0 WITH LLVM-exception)", zig / "lib/libunwind/LICENSE.TXT"))
    for name, file in found:
        if not file.is_file():
            raise InventoryError(f"there is no licence text of {name}: `{file}`")
    return found
