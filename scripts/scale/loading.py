"""Load an epoch of a given number of images, each of a few files under many names.

python scripts/scale/loading.py FOLDER --images 100000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
from memfit.data import ImageLoader
from PIL import Image

FILES = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, required=True)
    given = parser.parse_args()
    paths = [given.folder / f"{number}.jpg" for number in range(FILES)]
    given.folder.mkdir(parents=True, exist_ok=True)
    noise = numpy.random.default_rng(0)
    for path in paths:
        if not path.exists():
            small = noise.integers(0, 255, (8, 8, 3), dtype=numpy.uint8)
            Image.fromarray(small).resize((64, 64)).save(path)
    names = [str(paths[number % FILES]) for number in range(given.images)]
    loader = ImageLoader(names, labels=[0] * len(names), size=32, batch_size=256, memory="256 MiB")
    seen = sum(len(images) for images, _ in loader)
    assert seen == given.images, seen


if __name__ == "__main__":
    main()
