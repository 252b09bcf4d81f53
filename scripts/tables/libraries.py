"""Run the libraries' training scripts on virtual GPUs, compare their bytes with those that follow from
shapes, and write docs/libraries.md.

    python scripts/tables/libraries.py [--python PATH] [--only WORDS]

The interpreter needs what requirements/libraries.txt names. Results are kept next to the page, so that
`--only` runs the cases whose names hold these words again, and leaves the other rows as they were.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from typing import Any

import tomllib
from dry_runs import ROOT, STEPS, Case, Outcome, dry_run, mebibytes, versions

CASES = ROOT / "scripts/tables/libraries.toml"
SCRIPTS = ROOT / "workloads/libraries"
TARGET = ROOT / "docs/libraries.md"
RESULTS = ROOT / "measurements/libraries.json"


def libraries() -> list[dict[str, Any]]:
    """The libraries in the order of the file, `cases` as such."""
    found = tomllib.loads(CASES.read_text())["library"]
    return [{**each, "cases": [Case(**case) for case in each["cases"]]} for each in found]


def kept(outcome: Outcome) -> dict[str, Any]:
    """Return the parts of an outcome that the page needs."""
    report = outcome.report
    problems = (
        outcome.problems if outcome.expected else [*outcome.problems, "the script stated no arithmetic"]
    )
    return {
        "card": outcome.case.card,
        "peak": report["peak"] if outcome.whole else None,
        "expected": outcome.expected,
        "problems": problems,
        "assumptions": outcome.assumptions,
    }


def row(what: str, result: dict[str, Any]) -> str:
    peak = result["peak"]
    sizes = f"{mebibytes(peak['allocated'])} | {mebibytes(peak['reserved'])}" if peak else " | "
    held = ", ".join(f"{name} {mebibytes(value)}" for name, value in result["expected"].items())
    remarks = result["problems"] or ["passes"]
    if result["assumptions"]:
        remarks = [*remarks, "assumed: " + ", ".join(result["assumptions"])]
    return f"| {what} | {result['card']} | {sizes} | {held} | {'; '.join(remarks)} |"


def page(found: dict[str, Any], python: str) -> str:
    """Format docs/libraries.md."""
    every = [result for library in found.values() for result in library.values()]
    good = sum(not each["problems"] for each in every)
    base = versions(python, ["torch"])
    text = f"""# Libraries that were run

Written by `make libraries` ({datetime.date.today()}; torch {base["torch"]}, Python {base["python"]}). Each row is a
training script of `workloads/libraries/` that does not use memfit, run by `memfit run` for {STEPS} optimizer steps
on the named GPU. {good} of {len(every)} rows pass: the script ran, no call was refused, and the bytes at the peak are
within 0.1 % and 64 KiB of those that the script computes from shapes and data types (column *from shapes*: parameters, and optimizer state
in most rows). The peaks were not compared with anything. Sizes are in MiB. *Assumed* lists values that only a GPU can compute.

To run a row again: `python scripts/tables/libraries.py --only WORDS`; each row's command line is in
[libraries.toml](../scripts/tables/libraries.toml), the versions in
[requirements/libraries.txt](../requirements/libraries.txt).
"""
    for library in libraries():
        rows = [
            row(case.what, found[library["name"]][case.what])
            for case in library["cases"]
            if case.what in found.get(library["name"], {})
        ]
        named = versions(python, library["packages"])
        named.pop("python")
        text += f"""
## {library["name"]}

{", ".join(f"{name} {version}" for name, version in named.items())}

| | GPU | allocated | reserved | from shapes | |
|---|---|---|---|---|---|
""" + "\n".join([*rows, ""])
    return text


def results() -> dict[str, Any]:
    """Return the results so far, by library and case."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


def keep(library: str, what: str, result: dict[str, Any]) -> None:
    """Add one row, also while another run adds others."""
    found = results()
    found.setdefault(library, {})[what] = result
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if not args.only:
        RESULTS.unlink(missing_ok=True)
    failed = 0
    for library in libraries():
        for case in library["cases"]:
            title = f"{library['name']}: {case.what}"
            if args.only.lower() not in title.lower():
                continue
            outcome = dry_run(case, args.python, SCRIPTS)
            result = kept(outcome)
            keep(library["name"], case.what, result)
            failed += bool(result["problems"])
            print(f"{title}: {'; '.join(result['problems']) or 'as it should be'}", flush=True)
            if result["problems"]:
                print(outcome.output[-3000:], file=sys.stderr, flush=True)
    TARGET.write_text(page(results(), args.python))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
