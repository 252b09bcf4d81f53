"""Extract the kernels of PyTorch's releases: mangled names and bytes of each parameter.

    python scripts/kernels/symbols.py --torch "2.9.1 2.15.0"     # downloads wheels of up to 1 GB
    python scripts/kernels/symbols.py --library 2.15.0=PATH      # an installed libtorch_cuda.so
    python scripts/kernels/symbols.py --listing 2.15.0=PATH      # what the example `symbols` wrote of one

The table is `crates/memfit-kernels/symbols/torch.tsv.gz`: one line for each kernel of any release, with its
parameters and the releases that have it. The tests of memfit-kernels hold the layouts of its families to the
table. Releases that are not named stay as they are; without any name, all of the table are extracted again.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "crates/memfit-kernels/symbols/torch.tsv.gz"
LIBRARY = "torch/lib/libtorch_cuda.so"
# An unnamed namespace is called after a hash of its file's path and contents.
UNNAMED = re.compile(r"_GLOBAL__N__[0-9a-f]{8}(_\d+_\w+?_cu_)[0-9a-f]{8}")

# Releases by kernel: its name and its parameters.
Table = dict[tuple[str, str], set[str]]


def read() -> Table:
    """Read the current table."""
    table: Table = {}
    if TABLE.exists():
        for line in gzip.decompress(TABLE.read_bytes()).decode().splitlines():
            name, sizes, releases = line.split("\t")
            table[name, sizes] = set(releases.split())
    return table


def version(release: str) -> tuple[int, ...]:
    """A release, for sorting."""
    return tuple(int(part) for part in release.split("."))


def write(table: Table) -> None:
    """Writes the table; the same kernels make the same bytes."""
    lines = (
        f"{name}\t{sizes}\t{' '.join(sorted(releases, key=version))}\n"
        for (name, sizes), releases in sorted(table.items())
    )
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_bytes(gzip.compress("".join(lines).encode(), compresslevel=9, mtime=0))


def replace(table: Table, release: str, listing: str) -> None:
    """Puts a release's kernels in place of what the table has of it."""
    for releases in table.values():
        releases.discard(release)
    for line in listing.splitlines():
        name, sizes = line.split("\t")
        name = UNNAMED.sub(r"_GLOBAL__N__00000000\g<1>00000000", name)
        table.setdefault((name, sizes), set()).add(release)
    for kernel in [kernel for kernel, releases in table.items() if not releases]:
        del table[kernel]


def kernels_of(library: Path) -> str:
    """The kernels of a shared object, as the example `symbols` lists them."""
    command = [
        "cargo",
        "run",
        "--release",
        "--quiet",
        "--locked",
        "-p",
        "memfit-kernels",
        "--example",
        "symbols",
    ]
    done = subprocess.run(
        [*command, "--", str(library)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def download(release: str, folder: Path) -> Path:
    """Downloads a release's wheel and unpacks the library with the kernels."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(folder), f"torch=={release}"], check=True)
    (wheel,) = folder.glob("torch-*.whl")
    library = folder / "libtorch_cuda.so"
    with zipfile.ZipFile(wheel) as archive, archive.open(LIBRARY) as packed, library.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    wheel.unlink()
    return library


def named(arguments: list[str]) -> list[tuple[str, Path]]:
    """Releases with paths, as `RELEASE=PATH`."""
    pairs = [argument.partition("=") for argument in arguments]
    return [(release, Path(path)) for release, _, path in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--torch", default="", help="releases to download, apart by spaces")
    parser.add_argument("--library", action="append", default=[], metavar="RELEASE=PATH")
    parser.add_argument("--listing", action="append", default=[], metavar="RELEASE=PATH")
    arguments = parser.parse_args()
    table = read()
    for release, path in named(arguments.listing):
        replace(table, release, path.read_text())
        write(table)
    for release, path in named(arguments.library):
        replace(table, release, kernels_of(path))
        write(table)
    downloaded = arguments.torch.split()
    if not (downloaded or arguments.library or arguments.listing):
        downloaded = sorted({release for releases in table.values() for release in releases}, key=version)
    for release in downloaded:
        with tempfile.TemporaryDirectory(prefix="memfit-symbols-") as folder:
            replace(table, release, kernels_of(download(release, Path(folder))))
        write(table)
        print(f"{release}: {sum(release in releases for releases in table.values())} kernels")


if __name__ == "__main__":
    main()
