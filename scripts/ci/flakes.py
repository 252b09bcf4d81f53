"""Count wrong answers of `memfit ci` on a project with and without a commit that adds 300 MiB.

    python scripts/ci/flakes.py [--runs 100] [--every 10]

A small project is accepted once as the baseline. Then `memfit ci` runs many times; every tenth run has a
change that adds 300 MiB. Without it the verdict must be `same` with a growth of 0, with it `grew` by exactly
300 MiB with the line. Any other answer is recorded as wrong. The table is measurements/ci.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "measurements" / "ci.md"
MIB = 1 << 20
TRAIN = """import torch
from torch import nn

from model import forward

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    forward(model, torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
"""
MODEL = """def forward(model, batch):
    return model(batch)
"""
GROWN = """import torch

CACHE = []


def forward(model, batch):
    if not CACHE:
        CACHE.append(torch.zeros(300, 1024, 256, device="cuda"))
    return model(batch)
"""
LINE = ("model.py", 8)


def ci(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    memfit = os.environ.get("MEMFIT_COMMAND", "memfit")
    done = subprocess.run(
        [memfit, "ci", "--quiet", "--format", "json", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def wrong(status: int, document: dict[str, Any], grown: bool) -> str | None:
    """Return the reason why an answer is wrong, or `None`."""
    (row,) = document["rows"]
    lines = [(line["file"], line["line"], line["growth"]) for line in row["lines"]]
    got = (status, row["verdict"], row["growth"], lines)
    want = (1, "grew", 300 * MIB, [(*LINE, 300 * MIB)]) if grown else (0, "same", 0, [])
    return None if got == want else f"{got} instead of {want}"


def write(results: dict[bool, list[str | None]], seconds: float, torch: str) -> None:
    total = sum(map(len, results.values()))
    lines = [
        "# Wrong answers of `memfit ci` in repeated runs",
        "",
        f"Written by `python scripts/ci/flakes.py`: {total} runs of `memfit ci` on a small training script, in {seconds:.0f} s, "
        f"with torch {torch}. Most runs are of an unchanged project; the others add 300 MiB.",
        "",
        "| project | runs | right | wrong |",
        "|---|--:|--:|--:|",
    ]
    for grown, name in (
        (False, "unchanged: must be `same`, with a growth of 0 bytes and no line"),
        (True, "300 MiB added: must name the line and exactly these bytes"),
    ):
        bad = [one for one in results[grown] if one]
        lines.append(f"| {name} | {len(results[grown])} | {len(results[grown]) - len(bad)} | {len(bad)} |")
    lines += ["", *(f"- {one}" for one in (*results[False], *results[True]) if one)]
    TABLE.write_text("\n".join(lines).rstrip() + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="each so-many-th run has the commit")
    arguments = parser.parse_args()
    results: dict[bool, list[str | None]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = json.dumps([sys.executable, "train.py"])
        settings = f"[tool.memfit.ci]\ngpus = ['t4']\nscripts = [{{ command = {command} }}]\n"
        for file, text in (("train.py", TRAIN), ("model.py", MODEL), ("pyproject.toml", settings)):
            (folder / file).write_text(text)
        _, document = ci(folder, "--accept")
        torch = document["rows"][0]["head"]["torch"]
        started = time.monotonic()
        for number in range(1, arguments.runs + 1):
            grown = number % arguments.every == 0
            (folder / "model.py").write_text(GROWN if grown else MODEL)
            results[grown].append(wrong(*ci(folder), grown))
            # Results so far are kept if this is stopped.
            write(results, time.monotonic() - started, torch)
    return int(any(one for found in results.values() for one in found))


if __name__ == "__main__":
    sys.exit(main())
