"""Compares memfit with the batch size finders of Accelerate, Lightning and Composer: time, attempts and
result.

    python benches/finders/report.py --python PATH [--composer PATH] [--gpu t4] [--batch 512]

Writes measurements/finders.md. The interpreter needs memfit, accelerate, lightning and torchvision; Composer
pins an older PyTorch, and has one of its own. A finder without an interpreter keeps its row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "measurements/finders.json"
TARGET = ROOT / "measurements/finders.md"
sys.path.insert(0, str(HERE.parent))

NAMES = {
    "memfit": ("`memfit.Step`", "memfit"),
    "accelerate": ("Accelerate, `find_executable_batch_size`", "accelerate"),
    "lightning": ('Lightning, `scale_batch_size(mode="binsearch")`', "lightning"),
    "composer": ('Composer, `device_train_microbatch_size="auto"`', "mosaicml"),
}


def run(way: str, python: str, gpu: str, batch: int) -> dict[str, Any]:
    """Run one finder and return its output."""
    from whole_run import memfit

    command = [memfit(), "run", "--gpu", gpu, "--steps", "0", "--show-output", "--timeout", "1200", "--"]
    command += [python, str(HERE / "train.py"), way, "--batch", str(batch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    for line in (done.stdout + done.stderr).splitlines():
        if "finder: {" in line:
            return {**json.loads(line.split("finder: ", 1)[1]), "version": version(python, NAMES[way][1])}
    sys.exit(f"{way} printed no result (status {done.returncode}):\n{done.stderr[-3000:]}")


def version(python: str, package: str) -> str:
    asked = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    # A checkout that is run from its folder has no version of its own.
    return done.stdout.strip() or "of this checkout"


def row(way: str, said: dict[str, Any], batch: int) -> str:
    first = said["first"]
    name = f"{NAMES[way][0]} {said['version']}".strip()
    if first is None:
        return f"| {name} | {said['ooms']} | none | | | no step was completed |"
    kept = "unchanged" if first["batch"] == batch else f"**{first['batch']}** instead of {batch}"
    return (
        f"| {name} | {first['ooms']} | {first['card_s']:.1f} s | {first['wall_s']:.1f} s | {kept} "
        f"| {said['torch'].split('+')[0]} |"
    )


def main() -> None:
    """Runs all finders and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=None)
    parser.add_argument("--composer", default=None)
    parser.add_argument("--gpu", default="t4")
    parser.add_argument("--batch", type=int, default=512)
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for way in NAMES:
        python = options.composer if way == "composer" else options.python
        if python:
            found[way] = run(way, python, options.gpu, options.batch)
            print(f"{way}: {found[way]}", file=sys.stderr)
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    rows = "\n".join(row(way, found[way], options.batch) for way in NAMES if way in found)
    TARGET.write_text(
        f"# Time until the first training step fits: `memfit.Step` and batch size finders\n\n"
        f"Written by `python benches/finders/report.py --gpu {options.gpu} --batch {options.batch} --python PATH --composer "
        f"PATH`. The script trains a ResNet-50 in fp32 with SGD on a virtual {options.gpu}, with a batch of {options.batch} that does not "
        "fit.\n\n"
        "| | out-of-memory errors before the first completed step | time until it is completed, on the GPU (estimate) | on this machine | "
        "batch | PyTorch |\n|---|---|---|---|---|---|\n" + rows + "\n\n"
        "Both times include all trials. The GPU time is the virtual device's estimate; the other is the wall time of running the trials "
        "on the virtual device, on two cores with other work. Errors are PyTorch's own count (`num_ooms`). Accelerate and "
        "Lightning continue with a smaller batch, which changes training results; Composer and memfit keep the batch and split it "
        "into micro-batches.\n"
    )


if __name__ == "__main__":
    main()
