"""Mutation testing of the deciding crates: a seeded sample of mutants, and how many of them no test notices.

    cargo install cargo-mutants --locked
    python scripts/mutants.py [CRATE…] [--sample 200] [--seed 2026] [--minutes M]

Results go into measurements/mutants.json, the table into measurements/mutants.md. Per crate,
the tests of that crate decide. A mutant that survives for a stated reason (scripts/mutants.toml, by file,
function and change) counts apart. With `--minutes`, a crate ends after that time, with what was tried until
then: the order is the seed's, so that a shorter run is a sample, too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# A checkout of the commit, whose files are changed in place, so that nothing is compiled twice.
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
# A name begins with the place in the file, which moves with every change above it.
PLACE = re.compile(r"^(?P<file>[^:]+):\d+:\d+: (?P<change>.+)$")


def check_out() -> None:
    """Bring the checkout that is mutated to this commit."""
    commit = git("rev-parse", "HEAD")
    if not (TREE / ".git").exists():
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(TREE))
    git("-C", str(TREE), "fetch", "--quiet", "origin", commit)
    git("-C", str(TREE), "checkout", "--quiet", "--force", "--detach", commit)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def sample(crate: str, count: int, seed: int) -> list[str]:
    """The names of the mutants to try, in the order of the seed."""
    listed = subprocess.run(
        ["cargo", "mutants", "--list", "--json", "--package", crate],
        cwd=TREE,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted({mutant["name"] for mutant in json.loads(listed.stdout)})
    return random.Random(f"{seed} {crate}").sample(names, min(count, len(names)))


def try_all(crate: str, names: list[str], minutes: float | None) -> dict[str, list[str]]:
    """The names by outcome (caught, missed, timeout, unviable) of those that were tried."""
    outcomes: dict[str, list[str]] = {"caught": [], "missed": [], "timeout": [], "unviable": []}
    deadline = None if minutes is None else datetime.datetime.now() + datetime.timedelta(minutes=minutes)
    # In pieces, since cargo-mutants has an order of its own.
    for begin in range(0, len(names), 20):
        left = None if deadline is None else (deadline - datetime.datetime.now()).total_seconds()
        if left is not None and left <= 0:
            break
        for outcome, found in try_some(crate, names[begin : begin + 20], left).items():
            outcomes[outcome] += found
        print({outcome: len(found) for outcome, found in outcomes.items()}, file=sys.stderr)
    return outcomes


def try_some(crate: str, names: list[str], seconds: float | None) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        command = ["cargo", "mutants", "--package", crate, "--baseline", "skip", "--timeout", "300"]
        command += ["--test-tool", "nextest", "--output", folder, "--no-times", "--in-place"]
        # A lint that a mutant breaks says nothing of the tests.
        command += ["--cap-lints", "true", "--line-col", "true"]
        for name in names:
            command += ["--re", f"^{re.escape(name)}$"]
        environment = os.environ | {"CARGO_INCREMENTAL": "1", "PROPTEST_RNG_SEED": "2026"}
        child = subprocess.Popen(command, cwd=TREE, stdout=subprocess.DEVNULL, env=environment)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            child.wait()
        file = Path(folder) / "mutants.out/outcomes.json"
        if not file.exists():
            raise SystemExit(f"cargo mutants ended with status {child.returncode} and no result")
        kinds = {
            "CaughtMutant": "caught",
            "MissedMutant": "missed",
            "Timeout": "timeout",
            "Unviable": "unviable",
        }
        found: dict[str, list[str]] = {kind: [] for kind in kinds.values()}
        for outcome in json.loads(file.read_text())["outcomes"]:
            if isinstance(outcome["scenario"], dict) and outcome["summary"] in kinds:
                found[kinds[outcome["summary"]]].append(outcome["scenario"]["Mutant"]["name"])
        return found


def reasons() -> dict[str, str]:
    """Return the reasons why mutants may survive, by name without position."""
    if not REASONS.exists():
        return {}
    return {each["mutant"]: each["reason"] for each in tomllib.loads(REASONS.read_text())["survivor"]}


def without_place(name: str) -> str:
    found = PLACE.match(name)
    assert found, name
    return f"{found['file']}: {found['change']}"


def write_table(results: dict[str, Any]) -> None:
    known = reasons()
    lines = [
        "# Mutation testing",
        "",
        "Written by `python scripts/mutants.py` (`make mutants`), which says how. A mutant survives if all tests of its crate pass",
        "with it; the sample is drawn by a seed. Mutants that do not compile are left out.",
        "",
        "| crate | tried | noticed | survived | of these with a reason | without | commit, date |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    survivors = []
    for crate, result in sorted(results.items()):
        noticed = len(result["caught"]) + len(result["timeout"])
        tried = noticed + len(result["missed"])
        stated = [name for name in result["missed"] if without_place(name) in known]
        open_ones = [name for name in result["missed"] if without_place(name) not in known]
        survivors += open_ones
        share = 100 * len(open_ones) / tried if tried else 0
        lines.append(
            f"| `{crate}` | {tried} | {noticed} | {len(result['missed'])} | {len(stated)} | {share:.1f} % "
            f"| {result['commit']}, {result['date']} |"
        )
    if survivors:
        lines += ["", "Survivors without a reason:", "", *(f"- `{name}`" for name in survivors)]
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crates", nargs="*", metavar="CRATE", help="default: all deciding crates")
    parser.add_argument(
        "--sample", type=int, default=200, help="mutants for each crate (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--minutes", type=float, help="end each crate after this time")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    chosen = parser.parse_args()
    if shutil.which("cargo-mutants") is None:
        raise SystemExit("there is no cargo-mutants: `cargo install cargo-mutants --locked` brings it")
    check_out()
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for crate in [] if chosen.table else chosen.crates or CRATES:
        print(crate, file=sys.stderr)
        outcomes = try_all(crate, sample(crate, chosen.sample, chosen.seed), chosen.minutes)
        commit = git("rev-parse", "--short", "HEAD")
        results[crate] = {
            "commit": commit,
            "date": datetime.date.today().isoformat(),
            "seed": chosen.seed,
            **outcomes,
        }
        STORE.write_text(json.dumps(results, indent=1) + "\n")
    write_table(results)


if __name__ == "__main__":
    main()
