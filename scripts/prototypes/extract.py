#!/usr/bin/env python3
"""Brings the prototype lists of the virtual device up to date with installed NVIDIA wheels.

    python extract.py SITE_PACKAGES [SITE_PACKAGES ...]
    python extract.py --library nvml SITE_PACKAGES [SITE_PACKAGES ...]   # NVML's header has wheels of its own

Every SITE_PACKAGES is a folder that holds `nvidia/` wheels (one CUDA release each; give all that are
supported). Names come from the libraries' dynamic symbols and from the headers, parameters from the headers.
A line that is already in a list keeps its class, its parameters and its note: they were decided by a person.
New names come in as `refused`. What changed is printed, and names whose parameters differ from the newest
header are pointed out.

Needs Python 3.11, `libclang` (the Python package) and a C compiler's own headers.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import apifile
import tomllib
from headers import Prototype, Reader

HERE = Path(__file__).resolve().parent
ENTRY_POINT = r"PFN_(cu\w+?)_v(\d{4,5})(_pt[ds][zs])?\b"
VERSIONED = r"_\d+_\d+$"
CRATES = HERE.parent.parent / "crates"


def main() -> int:
    """Runs the extraction; 1 if something needs a person's eye."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("site_packages", nargs="+", type=Path)
    options.add_argument("--library", action="append", help="only these libraries")
    options.add_argument(
        "--refresh-refused",
        action="store_true",
        help="take the parameters of refused calls from the headers again",
    )
    arguments = options.parse_args()

    compiler_include = subprocess.run(
        ["gcc", "-print-file-name=include"], check=True, capture_output=True, text=True
    ).stdout.strip()
    releases = sorted((_release(p), p) for p in arguments.site_packages)
    environments = [(str(release // 1000), path) for release, path in releases]
    libraries = tomllib.loads((HERE / "libraries.toml").read_text())
    attention, taken = 0, set()
    for name, library in libraries.items():
        if not arguments.library or name in arguments.library:
            attention += update(name, library, environments, arguments, compiler_include, taken)
        taken |= set(apifile.read(_list(name, library)))
    return 1 if attention else 0


def update(name: str, library: dict, environments, arguments, compiler_include: str, taken: set[str]) -> int:
    """Updates one library's list; a name that an earlier library has (`taken`) stays there."""
    path = _list(name, library)
    prototypes: dict[str, dict[str, Prototype]] = {}
    seen: dict[str, set[str]] = {}
    sonames = set(library.get("soname", []))
    covered = set()
    for major, site in environments:
        found = Reader(library, _includes(site), compiler_include).read()
        names = set(library.get("names", [])) | (set() if library["exports"] else set(found))
        for shared in _libraries(site, library["exports"]):
            sonames.add(_soname(shared))
            names |= {n for n in _exports(shared) if n.startswith(tuple(library["prefixes"]))}
        names -= taken
        if names:
            covered.add(major)
        for each in names:
            seen.setdefault(each, set()).add(major)
        for each, prototype in found.items():
            if each not in names:
                continue
            prototypes.setdefault(each, {})[major] = prototype  # the newest release of a major wins

    if name == "nccl":  # the profiling interface: the same functions under a second name
        for each in [n for n in seen if n.startswith("pnccl")]:
            prototypes.setdefault(each, prototypes.get(each[1:], {}))
    by_stem = {
        re.sub(VERSIONED, "", each): prototype
        for each, prototype in prototypes.items()
        if re.search(VERSIONED, each)
    }
    for each in seen:  # a library that versions its names keeps their parameters
        if each not in prototypes and re.search(VERSIONED, each):
            prototypes[each] = by_stem.get(re.sub(VERSIONED, "", each), {})
    since = _releases(environments, set(seen)) if library.get("entry_points") else {}
    entries = apifile.read(path)
    fresh, attention = 0, 0
    for each in sorted(seen):
        by_major = prototypes.get(each, {})
        signature, note = _signature(by_major)
        only = next(iter(seen[each])) if len(covered) > 1 and len(seen[each]) == 1 else None
        known = entries.get(each)
        if known is None:
            entries[each] = apifile.Entry("refused", each, signature, only, note, since.get(each))
            fresh += 1
            continue
        known.only, known.since = only, since.get(each)
        if known.kind == "alias":
            continue
        if known.kind == "refused" and arguments.refresh_refused:
            known.signature, known.note = signature, note
        elif "?" not in signature and _arity(known.signature) != _arity(signature):
            print(f"{path.name}: {each}: the list says {known.signature}, the header {signature}")
            attention += 1
    for each in sorted(set(entries) - set(seen)):
        if seen:
            print(f"{path.name}: {each}: listed, but in none of these environments")
    apifile.write(path, apifile.preamble(path) or _head(name, library, sonames), entries)
    print(f"{path.name}: {len(entries)} names, {fresh} new")
    return attention


def _list(name: str, library: dict) -> Path:
    return CRATES / library.get("crate", "memfit-cuda-libraries") / "api" / f"{name}.api"


def _releases(environments, names: set[str]) -> dict[str, int]:
    """Return the release that introduced each entry point of the driver.

    The typedef headers name every version of a call after the release that introduced it
    (`PFN_cuMemAlloc_v3020`), the library numbers them (`cuMemAlloc`, `cuMemAlloc_v2`): in order they are the
    same.
    """
    releases: dict[tuple[str, str], set[int]] = {}
    for _, site in environments:
        for folder in _includes(site):
            for header in folder.glob("cuda*Typedefs.h"):
                for name, release, stream in re.findall(ENTRY_POINT, header.read_text()):
                    releases.setdefault((name, stream), set()).add(int(release))
    since = {}
    for (name, stream), numbers in releases.items():
        symbols = [
            s for s in [f"{name}{stream}", *(f"{name}_v{i}{stream}" for i in range(2, 10))] if s in names
        ]
        if len(symbols) == len(numbers):
            since.update(zip(symbols, sorted(numbers), strict=True))
        elif symbols:
            print(f"{name}{stream}: releases {sorted(numbers)}, but names {symbols}")
    return since


def _signature(by_major: dict[str, Prototype]) -> tuple[str, str]:
    if not by_major:
        return "(?)", ""
    texts = {major: p.text() for major, p in by_major.items()}
    newest = texts[max(texts)]
    if len(set(texts.values())) == 1:
        return newest, ""
    return newest, "; ".join(f"{major}: {text}" for major, text in sorted(texts.items()))


def _arity(signature: str) -> int:
    inside = signature[1 : signature.rindex(")")].strip()
    return 0 if not inside else re.sub(r"\(\d+\)", "", inside).count(",") + 1


def _head(name: str, library: dict, sonames: set[str]) -> str:
    return (
        f"library {name}\n"
        f"soname  {' '.join(sorted(sonames))}\n"
        f"prefix  {' '.join(library['prefixes'])}\n"
        f"status  {library['status']}  # success 0\n"
        f"invalid {library['invalid']}\n"
        f"refusal {library['refused']}\n" + ("computes\n" if library.get("computes") else "")
    )


def _includes(site: Path) -> list[Path]:
    return sorted(p for p in (site / "nvidia").glob("*/include") if p.is_dir())


def _libraries(site: Path, patterns: list[str]) -> list[Path]:
    return sorted(f for pattern in patterns for f in (site / "nvidia").glob(f"*/lib/{pattern}"))


def _exports(shared: Path) -> set[str]:
    table = subprocess.run(
        ["nm", "-D", "--defined-only", str(shared)], check=True, capture_output=True, text=True
    ).stdout
    names = set()
    for line in table.splitlines():
        symbol = line.split()
        if len(symbol) == 3 and symbol[1] in "TWi":
            names.add(symbol[2].split("@")[0])
    return names


def _soname(shared: Path) -> str:
    table = subprocess.run(["readelf", "-d", str(shared)], check=True, capture_output=True, text=True).stdout
    match = re.search(r"SONAME.*\[(.*)\]", table)
    return match[1] if match else shared.name


def _release(site: Path) -> int:
    """The CUDA release of an environment, as 12080 is 12.8."""
    for pattern, macro, scale in (
        ("cuda_runtime_api.h", "CUDART_VERSION", 1),
        ("nvml.h", "NVML_API_VERSION", 1000),
    ):
        for header in (site / "nvidia").glob(f"*/include/{pattern}"):
            if match := re.search(rf"#define {macro}\s+(\d+)", header.read_text()):
                return int(match[1]) * scale
    sys.exit(f"{site} holds neither the CUDA runtime's header nor NVML's")


if __name__ == "__main__":
    sys.exit(main())
