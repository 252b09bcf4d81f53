"""Check the files that `make dist` built.

    python scripts/dist/check.py [dist] [--again OTHER]

Checks that the wheel is small and well-formed, contains its licence files, contains no path of the build machine,
and that each library in it loads with an old glibc and nothing else. With `--again`, a second build must have an
identical wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wheels

MAX_WHEEL = 15_000_000
GLIBC = (2, 17)
# Shared libraries that each library may need: those of glibc.
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
# The loader itself, by processor.
LOADERS = {"EM_X86_64": "ld-linux-x86-64.so.2", "EM_AARCH64": "ld-linux-aarch64.so.1"}
LIBRARIES = {"libcuda.so.1", "libnvidia-ml.so.1", "libmemfit_watch.so"}
# Folders that only the machine of a build has.
MACHINE = re.compile(rb"(/root|/home/[\w.-]+|/Users/[\w.-]+|/work|/tmp)/[\w./-]*\.(rs|c|h|asm)\b")
WHEEL_NAME = re.compile(
    r"memfit-[\w.]+-cp310-abi3-(?:manylinux2014_(x86_64|aarch64)\.)?manylinux_2_(\d+)_(?(1)\1|(?:x86_64|aarch64))\.whl"
)


def of_wheel(wheel: Path) -> Iterator[str]:
    """Return the faults of a wheel."""
    size = wheel.stat().st_size
    if size >= MAX_WHEEL:
        yield f"{wheel.name} has {size} bytes, and must stay under {MAX_WHEEL}"
    named = WHEEL_NAME.fullmatch(wheel.name)
    if not named or int(named[2]) > 28:
        yield f"{wheel.name} is not tagged abi3 for manylinux_2_28 or older"
    files = wheels.read(wheel)
    yield from (f"RECORD is wrong about {name}" for name in wheels.wrong_records(files))
    have = {name.split("/", 1)[-1] for name in files}
    papers = {
        "licenses/LICENSE-MIT",
        "licenses/LICENSE-APACHE",
        "licenses/THIRD-PARTY.txt",
        "sboms/memfit.cdx.json",
    }
    wanted = (
        papers | {f"_device/{name}" for name in LIBRARIES} | {"_core.abi3.so", "data/share/man/man1/memfit.1"}
    )
    yield from (f"there is no {name} in the wheel" for name in sorted(wanted - have))
    for name, (contents, _) in sorted(files.items()):
        if name.endswith("sboms/memfit.cdx.json"):
            yield from of_bill(contents)
        found = MACHINE.search(contents)
        if found and contents[:4] == b"\x7fELF":
            yield f"{name} names a folder of the machine that built it: {found[0].decode()}"
        if contents[:4] == b"\x7fELF":
            yield from (f"{name} {fault}" for fault in of_library(contents))


def of_bill(contents: bytes) -> Iterator[str]:
    """Return the faults of a bill of materials."""
    components = json.loads(contents)["components"]
    if len(components) < 50:
        yield f"the bill of materials has {len(components)} components only"
    for each in components:
        if str(each.get("purl", "")).startswith("pkg:cargo/") and not (
            each.get("licenses") and each.get("hashes")
        ):
            yield f"{each['name']} has no licence or no hash in the bill of materials"


def of_library(contents: bytes) -> Iterator[str]:
    """Return the reasons why a library would not load on an old system, or together with a script's libraries."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    elf = ELFFile(io.BytesIO(contents))
    allowed = {*ALLOWED, LOADERS.get(elf["e_machine"])}
    for name in sorted(nowhere_found(elf)):
        yield f"needs {name}, which glibc {GLIBC[0]}.{GLIBC[1]} does not have"
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED" and tag.needed not in allowed:
                    yield f"needs {tag.needed}"
                if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH", "DT_TEXTREL"):
                    yield f"has {tag.entry.d_tag}"
        if isinstance(section, GNUVerNeedSection):
            for library, versions in section.iter_versions():
                for version in versions:
                    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
                    if not found:
                        yield f"needs {version.name} of {library.name}"
                    elif (int(found[1]), int(found[2])) > GLIBC:
                        yield f"needs {version.name}"


def nowhere_found(elf: Any) -> Iterator[str]:
    """The symbols that were in none of the libraries linked with: what has a version was found there."""
    symbols, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
    if symbols is None or versions is None:
        return
    pairs = zip(symbols.iter_symbols(), versions.iter_symbols(), strict=True)
    for symbol, version in pairs:
        undefined = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        unversioned = version["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        # Python's own come with the interpreter.
        if undefined and unversioned and not re.match("_?Py", symbol.name):
            yield symbol.name


def audited(wheel: Path) -> Iterator[str]:
    """Return auditwheel's objections to the wheel's tag."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join((said.stdout + said.stderr).split())
    found = re.search(r'consistent with the following platform tag: "(\w+)"', text)
    if not found:
        yield f"auditwheel does not tell a tag: {text}"
    elif found[1] not in wheel.name:
        yield f"auditwheel finds {found[1]}, and the wheel is {wheel.name}"


def of_sdist(archive: Path) -> Iterator[str]:
    """Return the files that an sdist lacks for a build."""
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[-1] for name in tar.getnames()}
    wanted = {
        "pyproject.toml",
        "Cargo.lock",
        "Cargo.toml",
        "packaging/memfit_build.py",
        "PKG-INFO",
        "LICENSE-MIT",
    }
    wanted |= {"crates/memfit-vgpu/build.rs", "crates/memfit-cuda/src/lib.rs", "python/memfit/__init__.py"}
    yield from (f"there is no {name} in the sdist" for name in sorted(wanted - names))
    for name in sorted(names):
        if re.search(r"(^|/)(target|__pycache__|\.venv)/|\.so(\.1)?$", name):
            yield f"{name} does not belong in the sdist"


def of_tarball(archive: Path) -> Iterator[str]:
    """Return the files that the stand-alone command lacks."""
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[-1]: tar.extractfile(name) for name in tar.getnames()}
        wanted = {"bin/memfit", "share/man/man1/memfit.1", "THIRD-PARTY.txt", "LICENSE-MIT", "LICENSE-APACHE"}
        wanted |= {f"lib/memfit/{name}" for name in LIBRARIES} | {"share/completions/memfit.nu"}
        yield from (f"there is no {name} in the tarball" for name in sorted(wanted - names.keys()))
        program = names.get("bin/memfit")
        if program:
            yield from (f"the stand-alone command {fault}" for fault in of_library(program.read()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dist"))
    parser.add_argument("--again", type=Path, help="the folder of a second build")
    arguments = parser.parse_args()
    faults: list[str] = []
    built = list(arguments.folder.glob("*.whl"))
    if len(built) != 1:
        sys.exit(f"there are {len(built)} wheels in `{arguments.folder}`, and not one: run `make dist`")
    (wheel,) = built
    faults += [*of_wheel(wheel), *audited(wheel)]
    for archive in arguments.folder.glob("*.tar.gz"):
        faults += of_tarball(archive) if "linux" in archive.name else of_sdist(archive)
    if arguments.again:
        other = arguments.again / wheel.name
        sums = [
            hashlib.sha256(each.read_bytes()).hexdigest() if each.exists() else "missing"
            for each in (wheel, other)
        ]
        if sums[0] != sums[1]:
            faults.append(f"a second build differs: {sums[0]} and {sums[1]}")
        else:
            print(f"a second build, from the sdist in another folder, is the same: {sums[0]}")
    if faults:
        sys.exit("\n".join(faults))
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, in order")


if __name__ == "__main__":
    main()
