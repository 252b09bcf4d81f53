"""Loads images of all kinds under a budget, and prints the process's own peak for comparison.

    python benches/data_memory.py --images 10000 --memory 512MiB -o measurements/data-memory
    python benches/data_memory.py --soak 1000000 -o measurements/data-soak

The images are synthetic and differ in format and size: baseline and progressive JPEGs of up to 100
megapixels, PNGs with 8 and 16 bits, WebPs, TIFFs. One file of each kind is made and listed many times, since
only the memory for decoding matters. The peak is the kernel's own figure for the process (VmHWM), minus the
memory of the process before the loader was made.

`--soak` loads this number of small images with random crops, and records the memory of the process (VmRSS)
over time: it must not grow after the first tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
from memfit.data import ImageLoader, jpeg_decoder
from memfit.data._loader import bytes_of
from PIL import Image

MIB = 1 << 20
BUDGET = """# `memfit.data` within a memory budget

Written by `benches/data_memory.py`. An `ImageLoader` with a memory budget loads synthetic images of many formats and sizes, up to
100 megapixels. *Added peak memory* is the highest resident memory of the process, as the kernel counts it (VmHWM), minus that
before the loader was made. Below it is the number of images of each kind.
"""
SOAK = """# Memory of `memfit.data` in a long run

Written by `benches/data_memory.py --soak`. An `ImageLoader` loads small synthetic images with random crops and flips. RSS is the
resident memory of the process (VmRSS): it must not grow after the first tenth of the images.
"""
Kind = tuple[str, int, int, dict[str, Any], int]
# Name, width, height, how it is saved, and how many of a thousand there are: most are of ordinary size.
KINDS: list[Kind] = [
    ("small.jpg", 500, 375, {"quality": 90}, 300),
    ("tiny.png", 64, 48, {}, 300),
    ("photo.jpg", 4000, 3000, {"quality": 90}, 60),
    ("photo-444.jpg", 4000, 3000, {"quality": 95, "subsampling": "4:4:4"}, 40),
    ("progressive.jpg", 4000, 3000, {"quality": 85, "progressive": True}, 20),
    ("large.jpg", 10000, 10000, {"quality": 60}, 3),
    ("large-progressive.jpg", 8000, 6000, {"quality": 60, "progressive": True}, 5),
    ("photo.png", 3000, 2000, {"compress_level": 1}, 10),
    ("deep.png", 3000, 2000, {"compress_level": 1}, 10),
    ("deep.tif", 3000, 2000, {}, 10),
    ("photo.webp", 2000, 1500, {"quality": 80}, 10),
]


def make(root: Path, kinds: list[Kind]) -> None:
    Image.MAX_IMAGE_PIXELS = None
    for name, width, height, options, _ in kinds:
        y, x = numpy.ogrid[0:height, 0:width]
        base = (x * 255 // width + y * 127 // height) // 2 + ((x // 37 + y // 29) % 2) * 40
        if name.startswith("deep"):
            image = Image.fromarray((base * 200).astype(numpy.uint16))
        else:
            image = Image.fromarray(
                numpy.clip(numpy.stack([base, base // 2, 255 - base], -1), 0, 255).astype(numpy.uint8)
            )
        image.save(root / name, **options)


def status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def soak(given: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Load many small images, and record the memory of the process over time."""
    kinds = [kind for kind in KINDS if kind[1] * kind[2] <= 200_000]
    files = ready(root, kinds)
    paths = [str(files[number % len(files)]) for number in range(given.soak)]
    held: list[int] = []
    begin = time.monotonic()
    loader = ImageLoader(
        paths,
        size=32,
        batch_size=64,
        memory="64 MiB",
        threads=given.threads,
        crop="random",
        flip=0.5,
        shuffle=True,
    )
    del paths
    every = max(1, len(loader) // 40)
    for number, _batch in enumerate(loader):
        if number % every == every - 1:
            held.append(status("VmRSS"))
    settled = held[len(held) // 10 :]
    return {
        "images": given.soak,
        "held": held,
        "grown": settled[-1] - settled[0],
        "spread": max(settled) - min(settled),
        "seconds": time.monotonic() - begin,
        "good": max(settled) - settled[0] <= 2 * MIB,
    }


def ready(root: Path, kinds: list[Kind]) -> list[Path]:
    """Return the files of these kinds; create them if they do not exist."""
    root.mkdir(parents=True, exist_ok=True)
    files = [root / name for name, *_ in kinds]
    if not all(file.exists() for file in files):
        # In a process of its own, or making them would count.
        import multiprocessing

        worker = multiprocessing.get_context("spawn").Process(target=make, args=(root, kinds))
        worker.start()
        worker.join()
    return files


def mixed(given: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Load images of all kinds under a budget, and return the peak memory of the process."""
    budget = bytes_of(given.memory)
    kinds = [kind for kind in KINDS if kind[1] * kind[2] <= given.megapixels * 1e6]
    files = ready(root, kinds)
    random = numpy.random.default_rng(1)
    weights = numpy.array([kind[4] for kind in kinds], float)
    chosen = random.choice(len(files), given.images, p=weights / weights.sum())
    paths = [str(files[number]) for number in chosen]
    # The allocator's, torch's and the threads' first use of memory is not the loader's.
    list(ImageLoader(paths[:4], size=32, memory="64 MiB", dtype="uint8", on_error="skip"))
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    loader = ImageLoader(
        paths,
        size=given.size,
        batch_size=given.batch_size,
        memory=budget,
        threads=given.threads,
        dtype="uint8",
        on_error="raise",
        oversize="skip",
        shuffle=True,
    )
    begin = time.monotonic()
    images = sum(len(batch) for batch, _ in loader)
    wall = time.monotonic() - begin
    peak = status("VmHWM") - before
    return {
        "images": images,
        "asked": given.images,
        "left_out": len(loader.skipped),
        "budget": budget,
        "peak": peak,
        "seconds": wall,
        "kinds": {name: int((chosen == number).sum()) for number, (name, *_) in enumerate(kinds)},
        "good": peak <= 1.05 * budget,
    }


def told(found: dict[str, Any]) -> list[str]:
    """Format the results as lines."""
    lines = [f"decoder             {jpeg_decoder}"]
    if "held" in found:
        held = [part / MIB for part in found["held"]]
        tenth = held[len(held) // 10]
        lines += [
            f"images              {found['images']:,}",
            f"RSS after a tenth   {tenth:,.1f} MiB",
            f"RSS at the end      {held[-1]:,.1f} MiB",
            f"highest in between  {max(held[len(held) // 10 :]):,.1f} MiB",
        ]
    else:
        share = 100 * found["peak"] / found["budget"]
        lines += [
            f"images              {found['images']:,} of {found['asked']:,}, {found['left_out']:,} skipped",
            f"budget              {found['budget'] / MIB:,.0f} MiB",
            f"added peak memory   {found['peak'] / MIB:,.1f} MiB ({share:.1f} % of the budget)",
            *(f"  {name:<24}{count:>8,}" for name, count in found["kinds"].items()),
        ]
    return [
        *lines,
        f"time                {found['seconds']:.1f} s, load average {os.getloadavg()[0]:.1f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--megapixels", type=float, default=100, help="skip larger ones")
    parser.add_argument("--soak", type=int, help="load this number of small images instead")
    parser.add_argument(
        "--files", type=Path, help="a folder for the synthetic files; they are made if missing"
    )
    parser.add_argument("-o", "--output", type=Path, help="write .json and .md of this name")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = given.files or Path(scratch)
        found = soak(given, root) if given.soak else mixed(given, root)
    lines = told(found)
    print("\n".join(lines))
    if given.output:
        text = (SOAK if given.soak else BUDGET) + "\n```\n"
        given.output.with_suffix(".md").write_text(text + "\n".join(lines) + "\n```\n")
        given.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
