"""Runs the Rust tests under the compiler's sanitizers: unsafe code, and memory shared by threads or
processes.

    python scripts/sanitizers/run.py [--sanitizer address|thread]… [CRATE…]

Needs a nightly toolchain with the sanitizers' runtimes. Results replace those of the same crates in
measurements/sanitizers.json, and the table is measurements/sanitizers.md. `address` finds accesses out of
bounds, use after free and leaks; `thread` finds data races. Rust has no sanitizer for undefined behaviour
in general: debug builds check overflows, alignment and what unsafe functions require.

The standard library is not instrumented: `thread` does not see how a contended lock is taken, and reports
accesses that the lock protects. So it runs only on code that shares memory without such locks: the ledger and
the event log. races.supp lists the places where they do use one, each with its reason. Tests run on the
harness's main thread, since the channels between its threads have the same problem.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORE = ROOT / "measurements/sanitizers.json"
PAGE = STORE.with_suffix(".md")
# Crates that have unsafe code, run in the user's process, or read untrusted files.
CRATES = (
    "memfit-abi",
    "memfit-allocator",
    "memfit-channel",
    "memfit-cuda",
    "memfit-cuda-libraries",
    "memfit-kernels",
    "memfit-loader",
    "memfit-nvml",
    "memfit-overlay",
    "memfit-recording",
    "memfit-vgpu",
    "memfit-watch",
)
# Shares memory by atomics.
THREADS = ("memfit-channel",)
FLAGS = {
    # Tests load the device's libraries, which find the sanitizer's runtime in the test's program.
    "address": "-Zsanitizer=address -Clink-arg=-rdynamic",
    # The standard library is not built with it, which the compiler would refuse.
    "thread": "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic",
}
# Tests that cannot pass with it, by reason.
MEASURES = "measure the memory of their own process, of which a sanitizer takes several times as much"
LOADS = "load the library into a program without the sanitizer's runtime"
MAPS = "replace pages of a block that is a mapping of its own, which the sanitizer's allocator does not give"
SKIPPED = {
    "each_file_that_is_made_to_do_harm_is_told_from_what_it_claims_to_be": MEASURES,
    "calls_leave_nothing_behind": MEASURES,
    "repeated_lists_are_read_once": MEASURES,
    "a_forked_child_has_a_log_of_its_own": LOADS,
    "outside_a_run_reports_are_only_passed_on": LOADS,
    "reports_are_logged_and_passed_on": LOADS,
    "a_block_repeats_its_beginning": MAPS,
    "writing_changes_one_place_only": MAPS,
}
SUMMARY = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed")
FINDING = re.compile(r"^SUMMARY: \w+Sanitizer: (.+)$", re.MULTILINE)


@dataclass
class Result:
    """Result of the tests of a crate."""

    sanitizer: str
    crate: str
    commit: str
    compiler: str
    passed: int = 0
    failed: int = 0
    findings: list[str] = field(default_factory=list)


def host() -> str:
    told = subprocess.run(["rustc", "+nightly", "-vV"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in told.splitlines() if line.startswith("host: "))


def environment(sanitizer: str) -> dict[str, str]:
    # Property tests take cases of one seed, and fewer of them: each takes several times as long here.
    cases = {"PROPTEST_CASES": "32", "PROPTEST_RNG_SEED": "2026"}
    options = {
        "LSAN_OPTIONS": f"suppressions={HERE / 'leaks.supp'}:print_suppressions=0",
        "TSAN_OPTIONS": f"suppressions={HERE / 'races.supp'}:print_suppressions=0",
    }
    target = str(ROOT / f"target/sanitizer-{sanitizer}")
    return {**os.environ, **cases, **options, "RUSTFLAGS": FLAGS[sanitizer], "CARGO_TARGET_DIR": target}


def build(sanitizer: str, crates: list[str]) -> list[tuple[str, Path, Path]]:
    """Build the tests. Return each program with its crate and the folder that it runs in."""
    packages = [f"--package={crate}" for crate in crates]
    command = ["cargo", "+nightly", "test", "--locked", "--no-run", "--lib", "--tests", "--target", host()]
    done = subprocess.run(
        [*command, "--message-format=json-render-diagnostics", *packages],
        env=environment(sanitizer),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    programs = []
    for line in done.stdout.splitlines():
        told = json.loads(line)
        if told.get("executable") and told["profile"]["test"]:
            folder = Path(told["manifest_path"]).parent
            programs.append((folder.name, Path(told["executable"]), folder))
    return programs


def run(sanitizer: str, program: Path, folder: Path, result: Result) -> None:
    # A test that starts its own program again needs cargo's variables.
    variables = {"CARGO_MANIFEST_DIR": str(folder), **environment(sanitizer)}
    done = subprocess.run(
        [str(program), "--test-threads=1", *(f"--skip={name}" for name in SKIPPED)],
        env=variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    found = [text.replace(f"{ROOT}/", "") for text in dict.fromkeys(FINDING.findall(done.stdout))]
    summary = SUMMARY.search(done.stdout)
    if summary:
        result.passed += int(summary[1])
        result.failed += int(summary[2])
    elif not found:
        found = [f"{program.name} ended with status {done.returncode}"]
    result.findings += found
    if found or (summary and int(summary[2])):
        print(done.stdout[-20000:], file=sys.stderr)


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def left_out() -> dict[str, list[str]]:
    """The tests that are left out, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in SKIPPED.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    return reasons


def page(results: list[Result]) -> str:
    """Format the results as a page."""
    lines = [
        "# The Rust tests under sanitizers",
        "",
        "Written by `python scripts/sanitizers/run.py` (`make sanitizers`). *address* finds accesses out of bounds, use after free and",
        "leaks; *thread* finds data races. The script's docstring says what they cannot find. Suppressions are in",
        "`scripts/sanitizers/*.supp`, with reasons. Tests are left out that",
        "",
        *(f"- {reason}: {', '.join(names)}" for reason, names in left_out().items()),
        "",
        "| sanitizer | crate | tests passed | failed | findings | commit | compiler |",
        "|---|---|--:|--:|---|---|---|",
    ]
    for result in results:
        findings = "; ".join(result.findings).replace("|", "/") or "none"
        lines.append(
            f"| {result.sanitizer} | `{result.crate}` | {result.passed} | {result.failed} | {findings} "
            f"| {result.commit} | {result.compiler} |"
        )
    missing = sorted(set(CRATES) - {result.crate for result in results})
    if missing:
        lines += ["", f"Not run yet: {', '.join(f'`{crate}`' for crate in missing)}."]
    return "\n".join(lines) + "\n"


def keep(results: list[Result]) -> None:
    """Add results, in place of earlier ones of the same crates."""
    known = [Result(**each) for each in json.loads(STORE.read_text())] if STORE.is_file() else []
    new = {(result.sanitizer, result.crate) for result in results}
    known = [result for result in known if (result.sanitizer, result.crate) not in new]
    every = sorted([*known, *results], key=lambda result: (result.sanitizer, result.crate))
    STORE.write_text(json.dumps([asdict(result) for result in every], indent=1) + "\n")
    PAGE.write_text(page(every))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crates", nargs="*", metavar="CRATE", help="only these")
    parser.add_argument("--sanitizer", action="append", choices=list(FLAGS), help="only this one")
    arguments = parser.parse_args()
    facts = (output("git", "rev-parse", "--short=8", "HEAD"), output("rustc", "+nightly", "--version"))
    results: dict[tuple[str, str], Result] = {}
    for sanitizer in arguments.sanitizer or FLAGS:
        known = THREADS if sanitizer == "thread" else CRATES
        crates = [crate for crate in known if crate in (arguments.crates or known)]
        for crate, program, folder in build(sanitizer, crates) if crates else []:
            result = results.setdefault((sanitizer, crate), Result(sanitizer, crate, *facts))
            run(sanitizer, program, folder, result)
            print(f"{sanitizer} {program.name}: {result.passed} passed, {result.findings}", flush=True)
        keep(list(results.values()))
    return int(any(result.failed or result.findings for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
