"""Compare published statements about which training fits on which GPU with `memfit cards`.

    python scripts/cards/published.py [--python PATH] [--only TEXT]

The cases are in `published.toml` with their sources. A label states for one GPU which of two batch sizes
fits: both are run on that GPU. A peak is checked on all known GPUs, but only those whose memory is clearly
smaller or larger than the peak count as statements. `--python` is an interpreter that has timm.

The result of each case is added to measurements/cards-published.json at once, and is not computed again. The
table is measurements/cards-published.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import tomllib
from measure import MIB, ROOT, cards

CASES = Path(__file__).with_name("published.toml")
STORE = ROOT / "measurements" / "cards-published.json"
TABLE = ROOT / "measurements" / "cards-published.md"
# Generous bound for memory outside PyTorch's allocator: context and libraries.
BEYOND = 2 << 30
GIB = 1 << 30


def label_cases() -> dict[str, dict[str, Any]]:
    """Return the cases that state which of two batch sizes fits, by their names."""
    asked = tomllib.loads(CASES.read_text())["label"]
    return {f"{case['model']}, batches {case['fits']} and {case['fails']}": case for case in asked}


def statement(row: dict[str, Any], published: str) -> dict[str, Any]:
    """A published statement and memfit's answer."""
    return {
        "gpu": row["gpu"],
        "batch": row["batch"],
        "published": published,
        "memfit": row["verdict"],
        "evidence": row["evidence"],
        "headroom": row["headroom"],
        "note": row["note"],
    }


def of_label(case: dict[str, Any], python: str) -> list[dict[str, Any]]:
    """Return the two statements of a label."""
    script = str(ROOT / "scripts" / "accuracy" / "timm_network.py")
    batches = f"{case['fits']},{case['fails']}"
    command = [python, script, case["model"], "train", "{batch}", str(case["size"]), case["layout"]]
    document = cards(command, "--gpu", "rtx-3090", "--batch", batches)
    published = {case["fits"]: "fits-as-is", case["fails"]: "does-not-fit"}
    return [statement(row, published[row["batch"]]) for row in document["rows"]]


def of_peak(case: dict[str, Any], python: str) -> list[dict[str, Any]]:
    """Return the statements that a peak implies about all known GPUs."""
    script = str(ROOT / "scripts" / "accuracy" / "course_lm.py")
    found = []
    for row in cards([python, script, *case["arguments"].split()])["rows"]:
        if row["capacity"] < case["allocated"] * MIB:
            found.append(statement(row, "does-not-fit"))
        elif "reserved" in case and row["capacity"] > case["reserved"] * MIB + BEYOND:
            found.append(statement(row, "fits-as-is"))
    return found


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Format the page."""
    statements = [each for found in results.values() for each in found]
    known = [each for each in statements if each["memfit"] != "unknown"]
    agree = [each for each in known if each["memfit"] == each["published"]]
    names = label_cases()
    labels = [each for name, found in results.items() if name in names for each in found]
    out = [
        "# Published fits and failures compared with `memfit cards`\n",
        'Written by `scripts/cards/published.py`. The statements, of the kind "this training fits on that GPU" or "does not',
        "fit\", are in `scripts/cards/published.toml` with their sources. memfit's answers are for a recent torch; most of the",
        "statements are for an older one.\n",
        f"Of {len(statements)} statements, memfit answers {len(known)}; {len(agree)} of these agree. The others are about GPUs for which",
        f"the installed torch has no kernels. {len(labels)} of the statements were published as fits and failures, and are counted in",
        f"[accuracy.md](accuracy.md) as well, which has more from other sources. The other {len(statements) - len(labels)} are derived from published peaks.\n",
        "- The first rows are timm's training benchmark on an RTX 3090, with one batch size that ran and one that ran out of memory.",
        "- The rows `course LM` are derived from published peaks: a GPU with less memory than was allocated cannot run the script, a",
        "  GPU with at least 2 GiB more than was reserved can. GPUs in between are not counted.",
        "- *Closest headroom* is the case's headroom that is nearest to zero: memory that stays free, negative if memory is missing.\n",
        "| case | published to fit: agree, differ | published to fail: agree, differ | no answer | closest headroom |",
        "|---|---|---|---|---|",
    ]

    def tally(found: list[dict[str, Any]], published: str) -> str:
        said = [each for each in found if each["published"] == published and each["memfit"] != "unknown"]
        right = sum(each["memfit"] == published for each in said)
        return f"{right}, {len(said) - right}" if said else ""

    for name, found in results.items():
        headrooms = [each["headroom"] for each in found if each["headroom"] is not None]
        nearest = min(headrooms, key=abs, default=None)
        unknown = sum(each["memfit"] == "unknown" for each in found)
        out.append(
            f"| {name} | {tally(found, 'fits-as-is')} | {tally(found, 'does-not-fit')} | {unknown or ''} "
            f"| {'' if nearest is None else f'{nearest / GIB:+.2f} GiB'} |"
        )
    misses = [
        (name, each)
        for name, found in results.items()
        for each in found
        if each in known and each not in agree
    ]
    out += ["", "## Statements that differ", ""]
    out += [
        f"- {name}: {each['gpu']} (batch {each['batch']}) is published as `{each['published']}`; memfit answers "
        f"`{each['memfit']}` ({each['evidence']}) with a headroom of {each['headroom'] / GIB:+.2f} GiB"
        for name, each in misses
    ] or ["None."]
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch and timm")
    parser.add_argument("--only", default="", help="cases with this text in their name")
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    labels = label_cases()
    peaks = {case["name"]: case for case in tomllib.loads(CASES.read_text())["peak"]}
    for name, case in {**labels, **peaks}.items():
        if name in results or args.only not in name:
            continue
        results[name] = (of_label if name in labels else of_peak)(case, args.python)
        STORE.write_text(json.dumps(results, indent=1) + "\n")
        TABLE.write_text(table(results))
        print(name, [(each["gpu"], each["memfit"]) for each in results[name]][:2], flush=True)


if __name__ == "__main__":
    main()
