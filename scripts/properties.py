"""Runs all property tests with many seeds: `make test` always has the same one, so that its result belongs to
a commit.

    python scripts/properties.py [--seeds 100] [--from 1] [PACKAGE…]

A failure is printed with its seed and the smallest case that was found: mend its cause, and keep the case as
a test of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def packages() -> list[str]:
    """Return the packages with property tests."""
    sources = (path for path in ROOT.glob("crates/*/**/*.rs") if "proptest! {" in path.read_text())
    return sorted({path.relative_to(ROOT).parts[1] for path in sources})


def names(package: str) -> set[str]:
    """The properties of a package: what stands in `proptest!` as a test."""
    found: set[str] = set()
    for path in (ROOT / "crates" / package).rglob("*.rs"):
        for block in path.read_text().split("proptest! {")[1:]:
            inside = block.split("\n}", 1)[0]
            lines = [line.strip() for line in inside.splitlines()]
            tests = (line for before, line in itertools.pairwise(lines) if before == "#[test]")
            found |= {line.removeprefix("fn ").split("(", 1)[0] for line in tests}
    return found


def binaries(package: str) -> list[tuple[str, Path]]:
    command = ["cargo", "test", "--package", package, "--lib", "--tests", "--no-run", "--locked"]
    built = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return [
        (message["target"]["name"], Path(message["executable"]))
        for message in messages
        if message.get("executable") and message["profile"]["test"]
    ]


def properties(binary: Path, known: set[str]) -> list[str]:
    listed = subprocess.run([binary, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    return [test for test in tests if test.rsplit("::", 1)[-1] in known]


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--seeds", type=int, default=100)
    arguments.add_argument("--from", type=int, default=1, dest="first")
    arguments.add_argument("package", nargs="*")
    given = arguments.parse_args()
    failed: dict[str, int] = {}
    held = 0
    for package in given.package or packages():
        known = names(package)
        for target, binary in binaries(package):
            tests = properties(binary, known)
            for seed in range(given.first, given.first + given.seeds) if tests else ():
                left = [test for test in tests if test not in failed]
                if not left:
                    break
                done = subprocess.run(
                    [binary, "--exact", *left],
                    cwd=ROOT / "crates" / package,
                    env=os.environ
                    | {"PROPTEST_RNG_SEED": str(seed), "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                if done.returncode:
                    wrong = [test for test in left if f"test {test} ... FAILED" in done.stdout]
                    failed |= dict.fromkeys(wrong or left, seed)
                    print(f"{package} {target}, seed {seed}:\n{done.stdout}", flush=True)
            held += sum(test not in failed for test in tests)
            if tests:
                print(f"{package} {target}: {len(tests)} properties", flush=True)
    print(f"{held} properties held with {given.seeds} seeds, {len(failed)} failed")
    for test, seed in failed.items():
        print(f"  {test}: PROPTEST_RNG_SEED={seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
