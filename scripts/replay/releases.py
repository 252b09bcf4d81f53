"""Makes recordings with several releases of PyTorch; reads, replays and explains each one.

    python scripts/replay/releases.py PYTHON [PYTHON…] # rewrites measurements/recorded-releases.{json,md}

With each interpreter, the single-process scripts of `examples/broken/` run on a virtual T4 with 3 GiB until
they run out of memory: all of them in one process, for which PyTorch writes a snapshot per script, and those
in `RECORDED` once more on their own, as recordings of `memfit run -o`. Every file is then replayed event by
event, and explained. Its addresses and segments are compared with those that the replay predicts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches"))

from whole_run import memfit  # noqa: E402

BROKEN = ROOT / "examples" / "broken"
DRIVER = ROOT / "tests" / "python" / "broken_driver.py"
RESULTS = ROOT / "measurements" / "recorded-releases.json"
CARD = ["--gpu", "t4", "--memory", "3GiB", "--steps", "0", "--no-prove"]
# The GPU is filled by other processes, which a snapshot does not show.
SEVERAL = ("other_processes", "outside")
# The harmful setting is not set by the script itself.
SETTINGS = {"setting_that_hurts": ""}
RECORDED = ("evaluation_with_gradients", "fragmented", "leaking", "two_batches_alive")


def call(arguments: list[str]) -> str:
    done = subprocess.run(
        [os.environ.get("MEMFIT_COMMAND") or memfit(), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        sys.stderr.write(done.stderr[-2000:])
    return done.stdout


def said_of(release: str, script: str, file: Path) -> dict[str, Any]:
    """Return the replay and the explanation of a file."""
    row: dict[str, Any] = {"release": release, "script": script, "kind": file.suffix.removeprefix(".")}
    replay = call(["replay", "--format", "json", str(file)])
    explained = call(["explain", "--format", "json", str(file)])
    if not replay or not explained:
        return {**row, "problem": "not read"}
    answer, explanation = json.loads(replay), json.loads(explained)
    return {
        **row,
        "events": answer["events"],
        "addresses": answer["addresses"],
        "segments": answer["segments"],
        "peak": answer["peak"],
        "again": (answer.get("recorded") or {}).get("peak"),
        "cause": explanation["cause"],
    }


def release_of(python: str) -> str:
    program = "import torch; print(torch.__version__)"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def of_release(python: str, folder: Path) -> list[dict[str, Any]]:
    release = release_of(python)
    scripts = sorted(script for script in BROKEN.glob("*.py") if script.stem not in SEVERAL)
    call(["run", *CARD, "--", python, str(DRIVER), str(folder), *map(str, scripts)])
    rows = [said_of(release, file.stem, file) for file in sorted(folder.glob("*.pickle"))]
    for name in RECORDED:
        file = folder / f"{name}.memfit"
        call(["run", *CARD, "-o", str(file), "--", python, str(BROKEN / f"{name}.py")])
        rows.append(said_of(release, name, file))
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    head = """# Recordings from several PyTorch releases: read, replayed and explained

Written by `scripts/replay/releases.py`. The scripts of `examples/broken` run out of memory on a virtual T4 with 3 GiB, with each
release. memfit reads PyTorch's snapshots of them, and some recordings of `memfit run -o`. It replays them event by event, and
explains them.

- *Addresses* and *segments*: how many of the replay's predictions equal the file.
- *Causes*: how many explanations name the cause for which the script was written. `memfit explain` was developed with these
  scripts, so this tests reading several releases, not the reasoning.
- Two of the thirteen scripts are left out, because other processes fill the GPU. A script that writes no snapshot with a release
  is not counted in its row.

| torch | source | files read | events | addresses | segments | causes |
|---|---|---|---|---|---|---|
"""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["release"], row["kind"]), []).append(row)
    lines = []
    for (release, kind), group in groups.items():
        read = [row for row in group if "problem" not in row]
        total = {
            what: f"{sum(row[what]['matching'] for row in read):,} of {sum(row[what]['predicted'] for row in read):,}"
            for what in ("addresses", "segments")
        }
        right = sum(row["cause"] == row["script"].replace("_", "-") for row in read)
        source = "PyTorch's snapshot" if kind == "pickle" else "`memfit run -o`"
        lines.append(
            f"| {release} | {source} | {len(read)} of {len(group)} | {sum(row['events'] for row in read):,} "
            f"| {total['addresses']} | {total['segments']} | {right} of {len(read)} |"
        )
    wrong = [row for row in rows if "problem" in row or row["cause"] != row["script"].replace("_", "-")]
    tail = [
        "",
        *(
            f"- {row['release']}, {row['script']}, {row['kind']}: {row.get('problem') or row['cause']}"
            for row in wrong
        ),
    ]
    return head + "\n".join(lines + (tail if wrong else [])) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "pythons", nargs="+", metavar="PYTHON", help="interpreters with torch, one of each release"
    )
    rows = []
    for python in parser.parse_args().pythons:
        with tempfile.TemporaryDirectory() as folder:
            rows += of_release(python, Path(folder))
        print(*rows[-2:], sep="\n", file=sys.stderr, flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
