"""Run memfit for ARM under emulation: scripts, whose peaks are compared with x86-64, and the Rust tests.

    python scripts/arm64.py [--folder target/arm64] [--only peaks|rust] [--crates "memfit-channel …"]

`make arm64` calls this, in an environment with `requirements/dist.txt`. It cross-compiles the wheel with zig,
installs it next to PyTorch's own CUDA wheel for ARM in a Debian for ARM, and runs scripts there on virtual
GPUs: peaks have to be those of the same scripts here. Then it builds the Rust tests and runs them in the same
Debian. It writes measurements/arm64.md after each script and each crate, and goes on where an earlier call
ended: what is there already is neither fetched, built nor run again.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts/dist"), str(ROOT / "scripts/arm")]

import build  # noqa: E402
import emulated  # noqa: E402

TABLE = ROOT / "measurements/arm64.md"
KEPT = ROOT / "measurements/arm64.json"
# The command in the emulated system, which sees the project and the packages.
INSIDE = ("env", "--chdir=/memfit", "PYTHONPATH=/site", "python3", "-m", "memfit")
# Emulated, everything takes ten to thirty times as long.
RUN_TIMEOUT = 3600
TEST_TIMEOUT = 1800
# These read only sources, which are the same for every CPU architecture.
NOT_RUN = {"memfit-tidy"}
# First those that depend on the CPU architecture.
FIRST = (
    *("memfit-channel", "memfit-abi", "memfit-cuda", "memfit-vgpu", "memfit-nvml", "memfit-watch"),
    *("memfit-allocator", "memfit-recording", "memfit-loader", "memfit-cuda-libraries", "memfit-kernels"),
    *("memfit-devices", "memfit-overlay", "memfit-prototypes"),
)


@dataclass(frozen=True)
class Case:
    """A script on a virtual GPU."""

    gpu: str
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"`{' '.join(self.command)}` on {self.gpu}"


CASES = (
    Case("rtx-4090", ("examples/classifier/train.py", "--workers", "0")),
    Case("a100-80gb", ("workloads/resnet.py",)),
    Case("gh200", ("workloads/vit.py",)),
    Case("h100-sxm", ("workloads/lstm.py",)),
    Case("gb200", ("workloads/unet.py",)),
    Case("h100-sxm", ("workloads/checkpointed.py",)),
    Case("rtx-5090", ("workloads/gan.py",)),
    Case("a10g", ("workloads/accumulate.py",)),
    Case("rtx-3060", ("examples/classifier/train.py", "--workers", "2")),
    # PyTorch's wheels for ARM have no kernels for Turing.
    Case("t4", ("workloads/resnet.py",)),
)


class Results:
    """The results, kept between calls, and the page that shows them."""

    def __init__(self, path: Path):
        self.path = path
        self.kept: dict[str, Any] = self.read()
        # The parts that this call measures; another one may be at work on the others.
        self.own: set[str] = set()

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def results_of(self, part: str, subject: str) -> dict[str, Any]:
        """The results of a part for `subject`, a hash of the tested files; others are dropped."""
        self.own.add(part)
        if self.kept.get(part, {}).get("subject") != subject:
            self.kept[part] = {"subject": subject, "found": {}}
        found: dict[str, Any] = self.kept[part]["found"]
        return found

    def save(self) -> None:
        self.kept = self.read() | {part: self.kept[part] for part in self.own}
        self.path.write_text(json.dumps(self.kept, indent=1) + "\n")
        lines = ["# Linux on ARM", "", f"Written by `make arm64` ({commit()}, {datetime.date.today()}).", ""]
        for part, page in (("peaks", peaks_page), ("rust", rust_page)):
            found = self.kept.get(part, {}).get("found")
            if part == "peaks" and found:
                found = {str(case): found[str(case)] for case in CASES if str(case) in found}
            if found:
                lines += [*page(found), ""]
        TABLE.write_text("\n".join(lines))


def capture(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def commit() -> str:
    return capture("git", "rev-parse", "--short", "HEAD")


def tell(text: str) -> None:
    """Progress, with the time of day."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


# --- Peaks --------------------------------------------------------------------------------------------------


def sources() -> str:
    """Return a hash of the sources of the wheel."""
    digest = hashlib.sha256()
    for name in capture("git", "ls-files", "crates", "python", "packaging", "Cargo.lock", "Cargo.toml").split(
        "\n"
    ):
        path = ROOT / name
        if path.is_file() and "/tests/" not in name:
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def build_wheel(folder: Path, memfit: Path) -> Path:
    """The wheel for ARM, built unless the one at hand is of the same sources."""
    out, stamp, made_of = folder / "dist", folder / "dist.sources", sources()
    if stamp.exists() and stamp.read_text() == made_of and list(out.glob("*.whl")):
        tell("the wheel for ARM is built already")
        return next(out.glob("*.whl"))
    tell("building the wheel for ARM, which takes ten minutes and more")
    command = [sys.executable, ROOT / "scripts/dist/build.py", "--processor", "aarch64", "--only", "wheel"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(folder / "target")}
    for step in (
        [*command, "--out", out, "--page", memfit],
        [sys.executable, ROOT / "scripts/dist/check.py", out],
    ):
        if subprocess.run(list(map(str, step)), env=environment, check=False).returncode:
            sys.exit(f"the wheel for ARM was not built: `{shlex.join(map(str, step))}` failed")
    stamp.write_text(made_of)
    return next(out.glob("*.whl"))


def verb(case: Case, python: str) -> list[str]:
    limit = ("--timeout", str(RUN_TIMEOUT))
    return ["run", "--gpu", case.gpu, "--format", "json", *limit, "--", python, *case.command]


def answer(done: subprocess.CompletedProcess[str], seconds: float) -> dict[str, Any]:
    """Return the part of a report that is kept."""
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"no answer (status {done.returncode}): {done.stderr[-2000:]}"}
    problem = report.get("problem") or {}
    return {
        "verdict": problem.get("kind", report["verdict"]),
        "message": problem.get("message"),
        "hint": problem.get("hint"),
        "peak": {name: report["peak"][name] for name in ("allocated", "reserved", "device")},
        "pinned": report["host"]["pinned"],
        "by_category": (report.get("at_peak") or {}).get("by_category"),
        "outside": report["outside"],
        "step_ms": report["time"]["step_ms_estimate"],
        "torch": report["torch"],
        "seconds": round(seconds),
    }


def peaks(folder: Path, results: Results, memfit: Path, wheel: Path | None) -> None:
    system = emulated.make(folder)
    wheel = wheel or build_wheel(folder, memfit)
    emulated.install(folder / "site", wheel, again="memfit")
    system.seen = {"memfit": ROOT, "site": folder / "site"}
    found = results.results_of("peaks", hashlib.sha256(wheel.read_bytes()).hexdigest())
    for number, case in enumerate(CASES, 1):
        if str(case) in found:
            tell(f"script {number} of {len(CASES)}: {case}: measured already")
            continue
        tell(f"script {number} of {len(CASES)}: {case}")
        # The interpreter next to the command, which has PyTorch.
        command = [str(memfit), *verb(case, str(memfit.with_name("python")))]
        began = time.monotonic()
        here = answer(
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False),
            time.monotonic() - began,
        )
        began = time.monotonic()
        done = system.chroot(*INSIDE, *verb(case, "python3"), stderr=subprocess.PIPE)
        there = answer(done, time.monotonic() - began)
        for place, one in (("here", here), ("for ARM", there)):
            if "error" in one:
                sys.exit(f"{case}, {place}: {one['error']}")
        found[str(case)] = {"here": here, "there": there}
        results.save()
        tell(row(str(case), here, there))


def row(case: str, here: dict[str, Any], there: dict[str, Any]) -> str:
    """One row of the table."""
    cells = [case]
    pairs = [(here["verdict"], there["verdict"])]
    if here["verdict"] == there["verdict"]:
        pairs += [(f"{here['peak'][name]:,}", f"{there['peak'][name]:,}") for name in here["peak"]]
        pairs += [(f"{here['pinned']:,}", f"{there['pinned']:,}")]
    else:
        pairs += [("-", "-")] * 4
    cells += [one if one == other else f"**{one}; ARM: {other}**" for one, other in pairs]
    return "| " + " | ".join([*cells, f"{there['seconds']} s"]) + " |"


def peaks_page(found: dict[str, Any]) -> list[str]:
    one = next(iter(found.values()))
    alike = sum(
        each["here"]["peak"] == each["there"]["peak"] and each["here"]["verdict"] == each["there"]["verdict"]
        for each in found.values()
    )
    lines = [
        f"PyTorch's own wheels ({platform.machine()}: {one['here']['torch']}, aarch64: {one['there']['torch']}) run the same scripts on",
        f"the same virtual GPUs, here and for ARM under {emulated.version()}: {alike} of {len(found)} have the same",
        "verdict and the same peaks. Peaks and page-locked memory of the host are bytes; where they differ, both are given.",
        "",
        "| script | verdict | allocated | reserved | device | page-locked | emulated for |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(row(case, each["here"], each["there"]) for case, each in found.items()),
    ]
    messages = {
        each["there"]["message"]: each["there"]["hint"] for each in found.values() if each["there"]["message"]
    }
    for message, hint in messages.items():
        lines += ["", f"ARM: {message}", "", f"hint: {hint}"]
    return lines


# --- Rust tests ---------------------------------------------------------------------------------------------


def crates() -> list[str]:
    """Return the workspace's crates, first those that depend on the CPU architecture."""
    said = json.loads(capture("cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"))
    names = sorted(package["name"] for package in said["packages"])
    order = {name: at for at, name in enumerate(FIRST)}
    return sorted(
        (name for name in names if name not in NOT_RUN), key=lambda name: order.get(name, len(order))
    )


def rust(folder: Path, results: Results, chosen: list[str]) -> None:
    """The Rust tests, in the emulated system, where their own child processes are emulated, too."""
    system, target = emulated.make(folder), folder / "tests"
    target.mkdir(exist_ok=True)
    emulated.give_compiler(system)
    system.seen[str(ROOT).lstrip("/")] = ROOT
    system.written[str(target).lstrip("/")] = target
    found = results.results_of("rust", "")
    wanted = chosen or [crate for crate in crates() if crate not in found]
    tell(f"{len(wanted)} crates to test, {len(crates()) - len(wanted)} not in this call or tested already")
    # The next crates are built while one is tested.
    with ThreadPoolExecutor(max_workers=1) as builder:
        builds = [builder.submit(emulated.build_tests, target, crate, build.GLIBC) for crate in wanted]
        for number, (crate, building) in enumerate(zip(wanted, builds, strict=True), 1):
            programs = building.result()
            tell(f"crate {number} of {len(wanted)}: {crate}")
            began = time.monotonic()
            if isinstance(programs, str):
                one: dict[str, Any] = {"error": programs}
            else:
                one = emulated.run_tests(system, programs, TEST_TIMEOUT)
            found[crate] = one | {"seconds": round(time.monotonic() - began), "commit": commit()}
            results.save()
            tell(f"{crate}: {one.get('error') or counts(one)}")


def counts(one: dict[str, Any]) -> str:
    return f"{one['passed']} passed, {len(one['failed'])} failed, {one['ignored']} ignored"


def first_error(text: str) -> str:
    """The first line of a compiler's or linker's output that names an error."""
    return next((line.strip() for line in text.splitlines() if "error:" in line), text.splitlines()[0])


def rust_page(found: dict[str, Any]) -> list[str]:
    ran = {crate: one for crate, one in found.items() if "error" not in one}
    passed = sum(one["passed"] for one in ran.values())
    failed = sum(len(one["failed"]) for one in ran.values())
    lines = [
        f"Rust tests, built for `{emulated.TARGET}`, under {emulated.version()}, each in a process of its own and with",
        f"16 cases for each property: {passed} passed, {failed} failed in {len(ran)} crates. Ignored ones are child processes of others.",
        f"Tests named `{emulated.LEFT_OUT}…` did not run: they measure the memory of many processes, of which the emulator takes gigabytes.",
        "",
        "| crate | commit | passed | failed | ignored |",
        "|---|---|--:|--:|--:|",
    ]
    lines += [
        f"| {crate} | {one['commit']} | {one['passed']} | {len(one['failed'])} | {one['ignored']} |"
        for crate, one in ran.items()
    ]
    rest = [f"- `{name}` of {crate} failed" for crate, one in ran.items() for name in one["failed"]]
    rest += [f"- {crate}: {first_error(one['error'])}" for crate, one in found.items() if "error" in one]
    missing = [crate for crate in crates() if crate not in found]
    rest += [f"- not run: {', '.join(missing)}"] if missing else []
    return [*lines, *([""] if rest else []), *rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "target/arm64", help="where everything is kept")
    parser.add_argument("--only", choices=["peaks", "rust"])
    parser.add_argument("--wheel", type=Path, help="a wheel for ARM, instead of building one")
    parser.add_argument("--crates", default="", help="test these, not all")
    parser.add_argument(
        "--memfit", type=Path, default=ROOT / ".venv/bin/memfit", help="the command of this machine"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    emulated.require(folder)
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(KEPT)
    if arguments.only != "rust":
        peaks(folder, results, arguments.memfit.absolute(), arguments.wheel)
    if arguments.only != "peaks":
        rust(folder, results, arguments.crates.split())
    results.save()
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
