"""Mutation testing of the most important crates: how many of a seeded sample of mutants no test detects.

    cargo install cargo-mutants --locked
    python scripts/mutants.py [CRATE…] [--sample 240] [--seed 2026] [--alone]
    python scripts/mutants.py [CRATE…] [--seed 2026] --again     # only the survivors, after new tests

cargo-mutants lists the mutants. All mutants of the sample are compiled into one build of the crate: a
function has a copy of its body for each of its mutants, and an environment variable selects one. So a mutant
costs one run of the tests and no build. Mutants that cannot be compiled this way (constants, `const fn`, and
those that break the build) are left out, or tried one by one with cargo-mutants (`--alone`), which takes ten
times as long.

Results go into measurements/mutants.json, the table into measurements/mutants.md. Only the tests of the same
crate count. Survivors with a reason (scripts/mutants.toml, by file, function and change) are counted
separately.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# A checkout of the commit, whose files are changed in place, so that dependencies are compiled once.
TREE = ROOT / "target/mutants"
STORE = ROOT / "measurements/mutants.json"
TABLE = ROOT / "measurements/mutants.md"
REASONS = ROOT / "scripts/mutants.toml"
# Crates that decide an answer or change a file: their faults would go unnoticed.
CRATES = (
    "memfit-allocator",
    "memfit-cards",
    "memfit-channel",
    "memfit-explain",
    "memfit-lint",
    "memfit-patch",
    "memfit-plan",
    "memfit-source",
    "memfit-train",
)
ENVIRONMENT = os.environ | {
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_INCREMENTAL": "1",
    "INSTA_UPDATE": "no",
    "INSTA_WORKSPACE_ROOT": str(TREE),
    "PROPTEST_RNG_SEED": "2026",
    "RUST_BACKTRACE": "0",
}
# A mutant may allocate without end.
MEMORY_LIMIT = 6 << 30
# Lints that refuse some mutants; a mutant that breaks them is as good as any other.
ALLOW = "#![allow(arithmetic_overflow, unconditional_panic, unconditional_recursion)] "
SWITCH = """
#[doc(hidden)]
pub fn memfit_mutant() -> u32 {
    static MUTANT: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var("MEMFIT_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    });
    *MUTANT
}
"""


@dataclass
class Mutant:
    """A change of some characters of a file. The number is its value of the environment variable."""

    name: str
    # File, function and change, and which of several such changes: this outlives edits of other lines.
    key: str
    file: str
    begin: int
    end: int
    replacement: str
    function: tuple[int, int] | None
    number: int = 0


@dataclass
class Outcomes:
    """The mutants by outcome."""

    noticed: list[Mutant] = field(default_factory=list)
    survived: list[Mutant] = field(default_factory=list)
    unviable: list[Mutant] = field(default_factory=list)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check_out() -> str:
    """Bring the checkout that is mutated to this commit, and return its short name."""
    commit = git("rev-parse", "HEAD")
    if not (TREE / ".git").exists():
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(TREE))
    git("-C", str(TREE), "fetch", "--quiet", "origin", commit)
    git("-C", str(TREE), "checkout", "--quiet", "--force", "--detach", commit)
    return git("rev-parse", "--short", commit)


def list_mutants(crate: str) -> list[Mutant]:
    command = ["cargo", "mutants", "--list", "--json", "--package", crate]
    listed = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True)
    texts: dict[str, list[int]] = {}
    seen: collections.Counter[str] = collections.Counter()
    mutants = []
    for each in json.loads(listed.stdout):
        file = each["file"]
        if file not in texts:
            starts = [0]
            for line in (TREE / file).read_text().splitlines(keepends=True):
                starts.append(starts[-1] + len(line))
            texts[file] = starts

        def offset(place: dict[str, int], starts: list[int] = texts[file]) -> int:
            return starts[place["line"] - 1] + place["column"] - 1

        def extent(span: dict[str, dict[str, int]], offset: Any = offset) -> tuple[int, int]:
            return offset(span["start"]), offset(span["end"])

        change = f"{file}: {each['name'].split(': ', 1)[1]}"
        seen[change] += 1
        key = change if seen[change] == 1 else f"{change} ({seen[change]})"
        function = each["function"] and extent(each["function"]["span"])
        mutants.append(Mutant(each["name"], key, file, *extent(each["span"]), each["replacement"], function))
    return mutants


def body_of(text: str) -> int | None:
    """The offset after the brace that opens the body of a function, or None if it must be built alone."""
    head = re.match(r"[^{;]*\bfn\b[^{;]*\{", re.sub(r"\[[^\[\]{}]*\]", lambda m: "_" * len(m[0]), text))
    if head is None or re.search(r"\bconst\s+(unsafe\s+)?fn\b|->\s*impl\b", head[0]):
        return None
    return head.end()


def with_switch(text: str, mutants: list[Mutant]) -> tuple[str, list[tuple[int, int, list[Mutant]]]]:
    """The text of a file with all these mutants, and which lines belong to which of them."""
    functions: dict[tuple[int, int], list[Mutant]] = {}
    outermost: tuple[int, int] = (0, 0)
    for span in sorted({m.function for m in mutants if m.function}, key=lambda span: (span[0], -span[1])):
        if span[0] >= outermost[1]:
            outermost = span
        functions[outermost] = functions.get(outermost, []) + [m for m in mutants if m.function == span]
    parts, lines = [], []
    line, at = 1, 0

    def add(part: str) -> tuple[int, int]:
        nonlocal line
        parts.append(part)
        first = line
        line += part.count("\n")
        return first, line

    for (begin, end), own in functions.items():
        opening = body_of(text[begin:end])
        assert opening is not None
        body = (begin + opening, end - 1)
        add(text[at : body[0]])
        start, _ = add(" match crate::memfit_mutant() {\n")
        for each in own:
            changed = text[body[0] : each.begin] + each.replacement + text[each.end : body[1]]
            first, last = add(f"{each.number} => {{{changed}\n}}\n")
            lines.append((first, last - 1, [each]))
        add(f"_ => {{{text[body[0] : body[1]]}\n}}\n}}")
        # An error elsewhere in the function concerns all its mutants.
        lines.append((start - text[begin : body[0]].count("\n"), line, own))
        at = body[1]
    add(text[at:])
    return "".join(parts), lines


def build(crate: str, mutants: list[Mutant]) -> tuple[list[Mutant], list[str]]:
    """Build the tests with all mutants. Return those that can't be built so, and the test programs."""
    root = f"crates/{crate}/src/lib.rs"
    files = sorted({mutant.file for mutant in mutants} | {root})
    originals = {file: (TREE / file).read_text() for file in files}

    def switchable(mutant: Mutant) -> bool:
        if mutant.function is None:
            return False
        begin, end = mutant.function
        body = body_of(originals[mutant.file][begin:end])
        return body is not None and mutant.begin >= begin + body

    chosen = [mutant for mutant in mutants if switchable(mutant)]
    try:
        for _ in range(30):
            places = {}
            for file in files:
                own = [mutant for mutant in chosen if mutant.file == file]
                text, places[file] = with_switch(originals[file], own)
                (TREE / file).write_text(ALLOW + text + SWITCH if file == root else text)
            errors, programs = compile_tests(crate)
            if not errors:
                return [mutant for mutant in mutants if mutant not in chosen], programs
            refused: list[Mutant] = []
            for file, line in errors:
                inside = [group for first, last, group in places.get(file, []) if first <= line <= last]
                refused += min(inside, key=len) if inside else []
            if not refused:
                raise SystemExit(f"{crate} does not compile: {errors}")
            chosen = [mutant for mutant in chosen if mutant not in refused]
        raise SystemExit(f"{crate} does not compile")
    finally:
        for file, text in originals.items():
            (TREE / file).write_text(text)


def compile_tests(crate: str) -> tuple[list[tuple[str, int]], list[str]]:
    """The places of errors, and the test programs."""
    command = [
        "cargo",
        "test",
        "--package",
        crate,
        "--lib",
        "--tests",
        "--no-run",
        "--message-format",
        "json",
    ]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, env=ENVIRONMENT)
    errors, programs = [], []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            spans = [span for span in message["message"]["spans"] if span["is_primary"]]
            errors += [(span["file_name"], span["line_start"]) for span in spans]
        elif (
            message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]
        ):
            programs.append(message["executable"])
    if done.returncode and not errors:
        raise SystemExit(done.stderr)
    return errors, programs


def tests_pass(crate: str, programs: list[str], number: int, seconds: float) -> bool:
    """If all tests pass with a mutant, in time."""
    folder = TREE / "crates" / crate
    environment = ENVIRONMENT | {"MEMFIT_MUTANT": str(number), "CARGO_MANIFEST_DIR": str(folder)}
    deadline = time.monotonic() + seconds
    for program in programs:
        child = subprocess.Popen(
            [program],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT)),
        )

        def end(child: subprocess.Popen[str] = child) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(max(deadline - time.monotonic(), 0), end)
        timer.start()
        failed = ""
        assert child.stdout is not None
        for line in child.stdout:
            # The first failed test is enough.
            if line.startswith("test ") and line.rstrip().endswith("FAILED"):
                failed = line
                end()
                break
        child.stdout.close()
        timer.cancel()
        if child.wait() or failed:
            if number == 0:
                print(failed or f"{program} ends with status {child.returncode}", file=sys.stderr)
            return False
    return True


def try_all(crate: str, mutants: list[Mutant], with_alone: bool) -> Outcomes:
    outcomes = Outcomes()
    for number, mutant in enumerate(mutants, 1):
        mutant.number = number
    began = time.monotonic()
    alone, programs = build(crate, mutants)
    built = time.monotonic()
    if not tests_pass(crate, programs, 0, 1200):
        raise SystemExit(f"the tests of {crate} fail without a mutant")
    usual = time.monotonic() - built
    told = (
        f"{crate}: built in {built - began:.0f} s, {len(alone)} mutants alone, the tests take {usual:.1f} s"
    )
    print(told, file=sys.stderr)
    for mutant in mutants:
        if mutant in alone:
            continue
        passed = tests_pass(crate, programs, mutant.number, 20 + 6 * usual)
        (outcomes.survived if passed else outcomes.noticed).append(mutant)
        if passed:
            print(mutant.name, file=sys.stderr)
    if with_alone:
        try_alone(crate, alone, outcomes, 60 + 10 * usual)
    seconds = (time.monotonic() - began) / max(len(mutants), 1)
    print(f"{crate}: {seconds:.1f} s for each mutant", file=sys.stderr)
    return outcomes


def try_alone(crate: str, mutants: list[Mutant], outcomes: Outcomes, seconds: float) -> None:
    """Build and try each of these mutants with cargo-mutants."""
    if not mutants:
        return
    with tempfile.TemporaryDirectory() as folder:
        command = ["cargo", "mutants", "--package", crate, "--baseline", "skip", "--in-place"]
        command += ["--timeout", f"{seconds:.0f}", "--output", folder, "--no-times", "--cap-lints", "true"]
        for mutant in mutants:
            command += ["--re", f"^{re.escape(mutant.name)}$"]
        command += ["--line-col", "true", "--", "--lib", "--tests"]
        subprocess.run(command, cwd=TREE, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        names = {mutant.name: mutant for mutant in mutants}
        for outcome in json.loads((Path(folder) / "mutants.out/outcomes.json").read_text())["outcomes"]:
            if not isinstance(outcome["scenario"], dict):
                continue
            mutant = names[outcome["scenario"]["Mutant"]["name"]]
            if outcome["summary"] == "MissedMutant":
                outcomes.survived.append(mutant)
                print(mutant.name, file=sys.stderr)
            elif outcome["summary"] == "Unviable":
                outcomes.unviable.append(mutant)
            else:
                outcomes.noticed.append(mutant)


def reading(commit: str, noticed: int, survived: list[Mutant]) -> dict[str, Any]:
    return {
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "noticed": noticed,
        "survived": [mutant.key for mutant in survived],
    }


def stored() -> dict[str, Any]:
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def write_table(results: dict[str, Any]) -> None:
    entries = tomllib.loads(REASONS.read_text())["survivor"] if REASONS.exists() else []
    known = {each["mutant"] for each in entries}
    lines = [
        "# Mutation testing",
        "",
        "Written by `python scripts/mutants.py` (`make mutants`). A mutant is a small change to the code, made by cargo-mutants. It",
        "survives if all tests of its crate still pass. A seeded sample is tried; mutants that do not compile are left out. *First run*",
        "is with the tests at that commit; *last run* tries its survivors again after tests were added. A survivor can have a reason",
        "(`scripts/mutants.toml`), for example that the change makes no difference.",
        "",
        "| crate | seed | mutants | survivors, first run | commit, date | survivors, last run | with a reason | without | commit, date |",
        "|---|--:|--:|--:|---|--:|--:|--:|---|",
    ]
    survivors = []
    for crate, seeds in sorted(results.items()):
        for seed, readings in sorted(seeds.items()):
            first, now = readings["first"], readings.get("again", readings["first"])
            tried = first["noticed"] + len(first["survived"])
            unstated = [key for key in now["survived"] if key not in known]
            survivors += unstated
            share = 100 * len(first["survived"]) / tried if tried else 0
            lines.append(
                f"| `{crate}` | {seed} | {tried} | {len(first['survived'])} ({share:.1f} %) "
                f"| {first['commit']}, {first['date']} | {len(now['survived'])} "
                f"| {len(now['survived']) - len(unstated)} "
                f"| {len(unstated)} ({100 * len(unstated) / max(tried, 1):.1f} %) | {now['commit']}, {now['date']} |"
            )
    if survivors:
        lines += ["", "Survivors without a reason:", "", *(f"- `{name}`" for name in sorted(set(survivors)))]
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crates", nargs="*", metavar="CRATE", help="default: the most important crates")
    parser.add_argument("--sample", type=int, default=240, help="mutants of a crate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--again", action="store_true", help="run the survivors of this seed again")
    parser.add_argument(
        "--alone", action="store_true", help="also try mutants that need a build of their own"
    )
    parser.add_argument("--table", action="store_true", help="only write the table again")
    chosen = parser.parse_args()
    if shutil.which("cargo-mutants") is None:
        raise SystemExit("there is no cargo-mutants: `cargo install cargo-mutants --locked` brings it")
    seed = str(chosen.seed)
    for crate in [] if chosen.table else chosen.crates or CRATES:
        commit = check_out()
        mutants = sorted(list_mutants(crate), key=lambda mutant: mutant.name)
        if chosen.again:
            before = set(stored()[crate][seed]["first"]["survived"])
            outcomes = try_all(crate, [mutant for mutant in mutants if mutant.key in before], True)
            new = {"again": reading(commit, len(before) - len(outcomes.survived), outcomes.survived)}
        else:
            draw = random.Random(f"{seed} {crate}")
            outcomes = try_all(crate, draw.sample(mutants, min(chosen.sample, len(mutants))), chosen.alone)
            new = {"first": reading(commit, len(outcomes.noticed), outcomes.survived)}
        results = stored()
        seeds = results.setdefault(crate, {})
        seeds[seed] = (seeds[seed] if chosen.again else {}) | new
        STORE.write_text(json.dumps(results, indent=1) + "\n")
    write_table(stored())


if __name__ == "__main__":
    main()
