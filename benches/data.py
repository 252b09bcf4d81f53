"""`memfit.data` beside other loaders, on real photographs, in one run.

    python benches/data.py                        # fetches the photographs with apt-get, about 27 MB
    python benches/data.py --photographs FOLDER   # takes those that are there

The photographs are those of Debian's lomiri-wallpapers packages (CC-BY and CC-BY-SA; they are never part of this
project). Large: at most 4000x3000 pixels of each, as baseline JPEG of quality 90. Small: tiles of 400x350. Every loader
delivers 224x224; those of torch float32, memfit uint8 and, in a row of its own, normalised to float32. A loader that is
not installed is left out. Each runs in a process of its own, in turns; the best of the turns counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("lomiri-wallpapers-16.04", "lomiri-wallpapers-20.04")
SIDE = 224


def fetch(root: Path) -> Path:
    """The photographs out of Debian's packages."""
    for package in PACKAGES:
        subprocess.run(
            ["apt-get", "download", "-q", package], cwd=root, check=True, stdout=subprocess.DEVNULL
        )
    for archive in root.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root / "out")], check=True)
    return root / "out"


def prepare(photographs: Path, root: Path) -> None:
    """The two sets that are measured."""
    from PIL import Image

    for name in ("large/a", "small/a"):
        (root / name).mkdir(parents=True, exist_ok=True)
    found = [Image.open(path) for path in sorted(photographs.rglob("*.jpg")) if not path.is_symlink()]
    found.sort(key=lambda image: image.width * image.height, reverse=True)
    for number, image in enumerate(found[:6]):
        part = image.convert("RGB").crop((0, 0, min(image.width, 4000), min(image.height, 3000)))
        part.save(root / f"large/a/{number}.jpg", quality=90, subsampling="4:2:0")
        for tile in range(33):
            left, top = tile % 6 * 420, tile // 6 * 370
            if left + 400 <= part.width and top + 350 <= part.height:
                part.crop((left, top, left + 400, top + 350)).save(
                    root / f"small/a/{number}-{tile}.jpg", quality=92
                )


def files_of(folder: Path, count: int) -> list[str]:
    files = sorted(str(path) for path in folder.rglob("*.jpg"))
    return (files * (count // len(files) + 1))[:count]


def memfit_rows(files: list[str], batch: int, threads: int, normal: bool = False) -> Iterator[int]:
    from memfit.data import ImageLoader, Normalize

    turn = Normalize() if normal else None
    for images, _ in ImageLoader(
        files, size=SIDE, batch_size=batch, threads=threads, memory="512 MiB", margin=1.0
    ):
        yield len(turn(images) if turn else images)


def torch_rows(files: list[str], batch: int, workers: int, way: str) -> Iterator[int]:
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)

    class Photographs(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            if way == "torchcodec":
                from torchcodec.decoders import decode_image

                image = decode_image(files[index])
            else:
                picture = Image.open(files[index])
                if way == "draft":
                    picture.draft("RGB", (SIDE, SIDE))
                image = picture.convert("RGB")
            image = functional.center_crop(functional.resize(image, [SIDE], antialias=True), [SIDE])
            image = functional.to_dtype(functional.to_image(image), torch.float32, scale=True)
            return functional.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    for images in DataLoader(Photographs(), batch, num_workers=workers):
        yield len(images)


LOADERS: dict[str, tuple[str, Callable[..., Iterator[int]]]] = {
    "memfit.data": ("memfit", lambda files, batch, n: memfit_rows(files, batch, n)),
    "memfit.data, normalised": ("memfit", lambda files, batch, n: memfit_rows(files, batch, n, True)),
    "DataLoader + PIL": ("PIL", lambda files, batch, n: torch_rows(files, batch, n, "plain")),
    "DataLoader + PIL, draft": ("PIL", lambda files, batch, n: torch_rows(files, batch, n, "draft")),
    "DataLoader + torchcodec": (
        "torchcodec",
        lambda files, batch, n: torch_rows(files, batch, n, "torchcodec"),
    ),
}


def resident(process: int) -> int:
    """What a process and its children hold, shared pages by their share."""
    total = 0
    for pid in [process, *children(process)]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"Pss:\s+(\d+) kB", text)
        total += int(found[1]) * 1024 if found else 0
    return total


def children(process: int) -> list[int]:
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        # One that ended while it was looked at.
        return []
    return [int(child) for task in tasks for child in task.split()]


def one(name: str, folder: str, count: int, batch: int, parallel: int) -> None:
    """One loader in this process; prints what it took as JSON."""
    import threading

    import torch
    import torchvision.transforms.v2  # noqa: F401

    _, make = LOADERS[name]
    before, peak, stop = resident(os.getpid()), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.03):
            peak[0] = max(peak[0], resident(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin, busy, first, done = time.perf_counter(), os.times(), None, 0
    for images in make(files_of(Path(folder), count), batch, parallel):
        first = first or time.perf_counter() - begin
        done += images
    wall = time.perf_counter() - begin
    stop.set()
    watcher.join()
    now = os.times()
    cpu = sum(now[:4]) - sum(busy[:4])
    print(
        json.dumps(
            {
                "rate": done / wall,
                "cpu_ms": 1000 * cpu / done,
                "extra": max(0, peak[0] - before),
                "first": first,
            }
        )
    )
    del torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--large", type=int, default=96)
    parser.add_argument("--small", type=int, default=3000)
    parser.add_argument("--parallel", type=int, default=2, help="threads, or worker processes")
    parser.add_argument("--one", nargs=4)
    given = parser.parse_args()
    if given.one:
        name, folder, count, batch = given.one
        one(name, folder, int(count), int(batch), given.parallel)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        prepare(given.photographs or fetch(root), root)
        print(f"{given.parallel} threads or workers, load of the machine {os.getloadavg()[0]:.1f}\n")
        for kind, count, batch in (("large", given.large, 8), ("small", given.small, 32)):
            results: dict[str, dict[str, float]] = {}
            for _ in range(given.turns):
                for name, (module, _make) in LOADERS.items():
                    if subprocess.run(
                        [sys.executable, "-c", f"import {module}"], capture_output=True
                    ).returncode:
                        continue
                    command = [sys.executable, __file__, "--parallel", str(given.parallel), "--one", name]
                    command += [str(root / kind), str(count), str(batch)]
                    finished = subprocess.run(command, capture_output=True, text=True)
                    if finished.returncode:
                        print(f"{name} failed: {finished.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                        continue
                    found = json.loads(finished.stdout)
                    if name not in results or found["rate"] > results[name]["rate"]:
                        results[name] = found
            base = results.get("DataLoader + PIL", {}).get("rate")
            print(
                f"| {kind}: {count} images, batches of {batch} | images/s | of the plain one | CPU ms/image | MiB more | first batch |"
            )
            print("|---|---|---|---|---|---|")
            for name, found in results.items():
                times = f"{found['rate'] / base:.2f}" if base else ""
                print(
                    f"| {name} | {found['rate']:.0f} | {times} | {found['cpu_ms']:.1f} | {found['extra'] / 2**20:.0f} | {found['first']:.2f} s |"
                )
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
