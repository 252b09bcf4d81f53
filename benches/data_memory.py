"""Loads images of all kinds under a budget, and prints the process's own peak beside it.

    python benches/data_memory.py --images 10000 --memory 512MiB

The images are made up and differ in kind and size: JPEGs, baseline and progressive, of up to 100 megapixels, PNGs of 8
and 16 bits, WebPs, TIFFs. A few files of each are made and named many times, since what counts is what decoding takes.
The peak is the kernel's own figure for the process (VmHWM), above what it was before the loader was made.
"""

from __future__ import annotations

import argparse
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--megapixels", type=float, default=100, help="leave larger ones out")
    parser.add_argument("--files", type=Path, help="a folder with the made files, made if it is not there")
    given = parser.parse_args()
    budget = bytes_of(given.memory)
    with tempfile.TemporaryDirectory() as scratch:
        root = given.files or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        kinds = [kind for kind in KINDS if kind[1] * kind[2] <= given.megapixels * 1e6]
        files = [root / name for name, *_ in kinds]
        if not all(file.exists() for file in files):
            # In a process of its own, or making them would count.
            import multiprocessing

            worker = multiprocessing.get_context("spawn").Process(target=make, args=(root, kinds))
            worker.start()
            worker.join()
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
        images = 0
        for batch, _ in loader:
            images += len(batch)
        wall = time.monotonic() - begin
        peak = status("VmHWM") - before
    print(f"decoder             {jpeg_decoder}")
    print(f"images              {images:,} of {given.images:,}, {len(loader.skipped):,} left out")
    print(f"budget              {budget / MIB:,.0f} MiB")
    print(f"peak above before   {peak / MIB:,.1f} MiB ({100 * peak / budget:.1f} % of the budget)")
    print(f"took                {wall:.1f} s")
    return 0 if peak <= 1.05 * budget else 1


if __name__ == "__main__":
    sys.exit(main())
