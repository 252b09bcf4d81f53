"""Build what is distributed, into `dist/`: the wheel, the sdist, the stand-alone command, the conda recipe.

    python scripts/dist/build.py [--root ROOT] [--out dist] [--only wheel] [--processor aarch64]

`make dist` calls this, in an environment with `requirements/dist.txt`. All libraries are linked by zig
against an old glibc, JPEG is decoded with SIMD, paths of this machine are kept out, and dates are those of
the last commit (`SOURCE_DATE_EPOCH` where it is set), so that a second build gives the same bytes. `--root`
builds another tree in the same way: the one that the sdist unpacks to, for instance. `--processor` builds for
another one than this machine's, whose Rust target must be installed (`rustup target add`); binfmt or
`MEMFIT_RUNNER` (an emulator's command) then runs the built command for its manual page, unless `--page` names
one that runs here.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import inventory
import wheels

HERE = Path(__file__).resolve().parents[2]
# The release of glibc that everything is linked against: what PyTorch itself asks for is newer.
GLIBC = "2.17"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libmemfit_watch.so")
SHELLS = {"bash": "memfit.bash", "zsh": "_memfit", "fish": "memfit.fish", "nushell": "memfit.nu"}


def version(root: Path) -> str:
    """The version of the workspace."""
    found = re.search(r'^version = "(.+?)"', (root / "Cargo.toml").read_text(), re.M)
    assert found
    return found[1]


def epoch(root: Path) -> int:
    """The date that everything in the distribution carries."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True)
    if said.returncode:
        sys.exit("there is no git history to take the date from: set SOURCE_DATE_EPOCH")
    return int(said.stdout)


def assembler(folder: Path, target: str) -> Path | None:
    """Return the folder of an assembler for libjpeg-turbo's SIMD code: `None` if the machine has one, else that
    of Debian's package, unpacked and not installed. ARM's SIMD code is C and needs none.
    """
    if shutil.which("nasm") or not target.startswith("x86_64"):
        return None
    unpacked = folder / "nasm"
    if not (unpacked / "usr/bin/nasm").exists():
        if platform.machine() != "x86_64" or not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            sys.exit(
                "JPEG is decoded with SIMD in what is distributed, which takes an assembler: install nasm"
            )
        unpacked.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["apt-get", "download", "-q", "nasm"], cwd=unpacked, check=False).returncode:
            sys.exit("the package nasm cannot be had: install nasm, or run `apt-get update`")
        (package,) = unpacked.glob("nasm_*.deb")
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=unpacked, check=True)
    return unpacked / "usr/bin"


def remapped(root: Path) -> list[str]:
    """The flags that keep this machine's folders out of what is compiled."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    named = {root: "/memfit", root.resolve(): "/memfit"}
    # Each registry's folder has a name of its machine's.
    for folder in sorted((home / "registry/src").glob("*")):
        named |= {folder: "/crates", folder.resolve(): "/crates"}
    return [f"--remap-path-prefix={old}={new}" for old, new in named.items()]


def settings(root: Path, tools: Path, target: str) -> dict[str, str]:
    """The environment of every step."""
    subprocess.run(["cargo", "fetch", "--quiet", "--locked"], cwd=root, check=True)
    nasm = assembler(tools, target)
    flags = "\x1f".join(remapped(root))
    folders = [str(Path(sys.executable).parent), *([str(nasm)] if nasm else []), os.environ["PATH"]]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RUSTFLAGS", "VIRTUAL_ENV")
    }
    return environment | {
        "PATH": os.pathsep.join(folders),
        "MEMFIT_GLIBC": GLIBC,
        "MEMFIT_TARGET": target,
        "SOURCE_DATE_EPOCH": str(epoch(root)),
        "CARGO_ENCODED_RUSTFLAGS": flags,
        "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(root / "target/dist")),
        "CARGO_PROFILE_RELEASE_STRIP": "symbols",
        "CFLAGS": f"-ffile-prefix-map={root}=/memfit",
        "ZERO_AR_DATE": "1",
    }


def hook(root: Path, environment: dict[str, str], name: str, folder: Path) -> Path:
    """Call a hook of the build backend, as pip does; gives the file that it made."""
    folder.mkdir(parents=True, exist_ok=True)
    code = f"import sys; sys.path.insert(0, 'packaging'); import memfit_build; print(memfit_build.{name}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder.resolve())]
    said = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if said.returncode:
        sys.exit(said.stdout + f"{name} failed")
    return folder / said.stdout.strip().splitlines()[-1]


def texts(root: Path, target: str) -> dict[str, str]:
    """The papers that go along: notices and bill of materials."""
    import ziglang

    found = inventory.components(root, target)
    mit = (root / "LICENSE-MIT").read_text()
    libraries = inventory.runtime_licences(Path(ziglang.__file__).parent)
    return {
        "THIRD-PARTY.txt": inventory.notices(found, libraries, mit),
        "memfit.cdx.json": inventory.bill_of_materials(
            found, version(root), sorted({name for name, _ in libraries})
        ),
    }


def finish_wheel(built: Path, out: Path, papers: dict[str, str], page: bytes, when: int) -> Path:
    """Put the papers and the manual page into a wheel, and write it so that it comes out the same again."""
    files = wheels.read(built)
    (info,) = {name.split("/")[0] for name in files if name.split("/")[0].endswith(".dist-info")}
    # maturin's own bill names the Python module's crates alone.
    files = {name: file for name, file in files.items() if not name.startswith(f"{info}/sboms/")}
    files[f"{info}/licenses/THIRD-PARTY.txt"] = (papers["THIRD-PARTY.txt"].encode(), 0o644)
    files[f"{info}/sboms/memfit.cdx.json"] = (papers["memfit.cdx.json"].encode(), 0o644)
    metadata, mode = files[f"{info}/METADATA"]
    line = b"License-File: LICENSE-MIT\n"
    if line not in metadata:
        sys.exit("the wheel's metadata names no licence files")
    metadata = metadata.replace(line, line + b"License-File: THIRD-PARTY.txt\n", 1)
    files[f"{info}/METADATA"] = (metadata, mode)
    files[info.replace(".dist-info", ".data/data/share/man/man1/memfit.1")] = (page, 0o644)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / built.name
    wheels.write(wheel, files, when)
    return wheel


def archive(out: Path, files: dict[str, tuple[bytes, int]], when: int) -> Path:
    """Write a tarball that comes out the same again."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (contents, mode) in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(contents), mode, when
            tar.addfile(info, io.BytesIO(contents))
    out.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    return out


def command(root: Path, environment: dict[str, str], target: str) -> Path:
    """The stand-alone command."""
    build = [
        "cargo",
        "zigbuild",
        "--release",
        "--locked",
        "--target",
        f"{target}.{GLIBC}",
        "--package",
        "memfit-cli",
    ]
    subprocess.run(build, cwd=root, env=environment, check=True)
    return Path(environment["CARGO_TARGET_DIR"]) / target / "release/memfit"


def said_by(program: Path, *arguments: str) -> bytes:
    runner = shlex.split(os.environ.get("MEMFIT_RUNNER", ""))
    called = [*runner, str(program), "--isolated", *arguments]
    return subprocess.run(called, stdout=subprocess.PIPE, check=True).stdout


def tarball(
    root: Path, out: Path, target: str, program: Path, papers: dict[str, str], page: bytes, when: int
) -> Path:
    """The stand-alone command with its libraries, manual page, completions and licences."""
    top = f"memfit-{version(root)}-{target}"
    files = {f"{top}/bin/memfit": (program.read_bytes(), 0o755)}
    for name in LIBRARIES:
        files[f"{top}/lib/memfit/{name}"] = ((root / "python/memfit/_device" / name).read_bytes(), 0o755)
    files[f"{top}/share/man/man1/memfit.1"] = (page, 0o644)
    for shell, name in SHELLS.items():
        files[f"{top}/share/completions/{name}"] = (said_by(program, "completions", shell), 0o644)
    for name in ("LICENSE-MIT", "LICENSE-APACHE", "README.md"):
        files[f"{top}/{name}"] = ((root / name).read_bytes(), 0o644)
    for name, text in papers.items():
        files[f"{top}/{name}"] = (text.encode(), 0o644)
    return archive(out / f"{top}.tar.gz", files, when)


def sdist(root: Path, environment: dict[str, str], out: Path, scratch: Path, when: int) -> Path:
    """The sources, with one date and owner."""
    made = hook(root, environment, "build_sdist", scratch)
    files = {}
    with tarfile.open(made) as tar:
        for member in tar.getmembers():
            contents = tar.extractfile(member)
            if contents is not None:
                files[member.name] = (contents.read(), 0o755 if member.mode & 0o111 else 0o644)
    return archive(out / made.name, files, when)


def recipe(root: Path, wheel: Path) -> Path:
    """The conda recipe of this wheel."""
    text = (root / "packaging/conda/recipe.yaml.in").read_text()
    for name, value in {
        "VERSION": version(root),
        "WHEEL": wheel.name,
        "SHA256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }.items():
        text = text.replace(f"@{name}@", value)
    made = wheel.parent / "conda/recipe.yaml"
    made.parent.mkdir(exist_ok=True)
    made.write_text(text)
    return made


def sums(out: Path) -> None:
    """The hashes of all files, as `sha256sum --check` reads them."""
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n"
        for name in names
        if name != "SHA256SUMS"
    ]
    (out / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=HERE, help="the tree to build")
    parser.add_argument("--out", type=Path, default=None, help="the folder to fill; `dist` in the tree")
    parser.add_argument("--only", choices=["wheel"], help="leave out all else")
    parser.add_argument(
        "--page", type=Path, help="a command of this version that has the manual page; none is built"
    )
    parser.add_argument(
        "--processor", default=platform.machine(), help="default: this machine's (%(default)s)"
    )
    arguments = parser.parse_args()
    target = f"{arguments.processor}-unknown-linux-gnu"
    root = arguments.root.resolve()
    out = (arguments.out or root / "dist").resolve()
    if arguments.page and arguments.only != "wheel":
        parser.error("--page is for `--only wheel`: what else is distributed has the command")
    environment = settings(root, HERE / "target/dist-tools", target)
    when = int(environment["SOURCE_DATE_EPOCH"])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    scratch = Path(environment["CARGO_TARGET_DIR"]) / "made"
    built = hook(root, environment, "build_wheel", scratch)
    # The stand-alone command is a second build of everything.
    program = arguments.page or command(root, environment, target)
    papers, page = texts(root, target), said_by(program, "completions", "man")
    wheel = finish_wheel(built, out, papers, page, when)
    if arguments.only != "wheel":
        sdist(root, environment, out, scratch, when)
        tarball(root, out, target, program, papers, page, when)
        recipe(root, wheel)
        shutil.copyfile(root / "packaging/Containerfile", out / "Containerfile")
    sums(out)


if __name__ == "__main__":
    main()
