"""Build the command for macOS as far as Linux allows it: everything is compiled and linked, nothing is run.

    python scripts/dist/macos.py [--folder FOLDER] [--target aarch64-apple-darwin]

`make macos` calls this, in an environment with `requirements/dist.txt`, as root. The standard library of Rust
for macOS is compiled from the sources that Debian packages with its compiler, in a Debian of its own; zig
compiles the code in C and links. What is kept in FOLDER is used again by a later call.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import matrix  # noqa: E402

ROOT = HERE.parents[1]
# The first suite whose compiler is as new as this project asks for.
SUITE = "forky"
PACKAGES = "rustc,cargo,rust-src,gcc,libc6-dev,ca-certificates"
# zig's names of the targets.
TARGETS = {"aarch64-apple-darwin": "aarch64-macos", "x86_64-apple-darwin": "x86_64-macos"}
# The standard library names this library of macOS, which zig does not bring.
ICONV = """--- !tapi-tbd
tbd-version:     4
targets:         [ arm64-macos, x86_64-macos ]
install-name:    '/usr/lib/libiconv.2.dylib'
exports:
  - targets:     [ arm64-macos, x86_64-macos ]
    symbols:     [ _iconv, _iconv_close, _iconv_open ]
...
"""
# zig has its own option for the target, and does not know those that cargo and rustc pass for it.
COMPILER = """#!/bin/sh
n=$#
while [ $n -gt 0 ]; do
    word=$1; shift; n=$((n - 1))
    case "$word" in
        -arch) shift; n=$((n - 1)) ;;
        --target=* | -mmacosx-version-min=*) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec /zig/zig cc -target {target} -L/stubs "$@"
"""
BUILD = """set -eu
cd /project
export HOME=/root CARGO_TARGET_DIR=/target RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=none
export CC_{name}=/compiler AR_{name}=/archiver CARGO_TARGET_{upper}_LINKER=/compiler
exec cargo build --locked -Zbuild-std=std,panic_abort,panic_unwind --target {target} -p memfit-cli --bin memfit
"""


def prepare(root: Path) -> None:
    """Make the Debian, unless it is there."""
    if (root / "usr/src").exists():
        return
    scripts = Path("/usr/share/debootstrap/scripts")
    # debootstrap of an older Debian has no script for a newer suite; all of them are the same.
    script = [] if (scripts / SUITE).exists() else [str(scripts / "sid")]
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
    if subprocess.run([*command, matrix.mirror(), *script], check=False).returncode:
        sys.exit(f"debootstrap could not make {SUITE}: it needs root and a mirror of Debian")
    subprocess.run(["umount", "-q", str(root / "proc")], check=False)


def write(path: Path, text: str, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the system and the build are kept")
    parser.add_argument("--target", choices=TARGETS, default="aarch64-apple-darwin")
    arguments = parser.parse_args()
    import ziglang

    with tempfile.TemporaryDirectory() as temporary:
        root = (arguments.folder or Path(temporary) / "root").resolve()
        prepare(root)
        write(root / "compiler", COMPILER.format(target=TARGETS[arguments.target]))
        write(root / "archiver", '#!/bin/sh\nexec /zig/zig ar "$@"\n')
        write(root / "stubs/libiconv.tbd", ICONV, 0o644)
        name = arguments.target.replace("-", "_")
        write(root / "build.sh", BUILD.format(name=name, upper=name.upper(), target=arguments.target), 0o644)
        certificates = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
        if Path(certificates).exists():
            shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")
        for file in ("resolv.conf", "hosts"):
            shutil.copy(Path("/etc") / file, root / "etc" / file)
        registry = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry"
        registry.mkdir(parents=True, exist_ok=True)
        system = matrix.System(
            SUITE,
            root,
            {"project": ROOT, "zig": Path(ziglang.__file__).parent},
            {"root/.cargo/registry": registry},
        )
        done = system.chroot("sh", "/build.sh")
        if done.returncode:
            sys.exit(f"{done.stdout[-4000:]}\nmemfit was not built for {arguments.target}")
        built = root / "target" / arguments.target / "debug/memfit"
        print(f"memfit was compiled and linked for {arguments.target}: {built.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
